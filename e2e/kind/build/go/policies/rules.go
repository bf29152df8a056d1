package main

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// cluster contains the objects that policies select from: pods with their own address, and labels of namespaces.
type cluster struct {
	pods       []*core.Pod
	namespaces map[string]labels.Set
}

func newCluster(pods []*core.Pod, namespaces []*core.Namespace) cluster {
	found := cluster{namespaces: map[string]labels.Set{}}
	for _, pod := range pods {
		ended := pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
		if pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !ended {
			found.pods = append(found.pods, pod)
		}
	}
	slices.SortFunc(found.pods, func(a, b *core.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })
	for _, namespace := range namespaces {
		found.namespaces[namespace.Name] = namespace.Labels
	}
	return found
}

// ruleset returns the table for nft: one chain for each isolated pod of the node, selected by its address.
//
// Connections from the node itself (the kubelet's probes) do not pass the forward hook, so they are never rejected.
func ruleset(node string, all cluster, policies []*networking.NetworkPolicy) string {
	slices.SortFunc(policies, func(a, b *networking.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	var chains, jumps []string
	for _, pod := range all.pods {
		if pod.Spec.NodeName != node {
			continue
		}
		isolated := false
		var rules []string
		for _, policy := range policies {
			if isIngress(policy) && policy.Namespace == pod.Namespace && matches(&policy.Spec.PodSelector, pod.Labels) {
				isolated = true
				for _, rule := range policy.Spec.Ingress {
					rules = append(rules, accepts(all, pod, policy.Namespace, rule)...)
				}
			}
		}
		if isolated {
			name := "pod-" + strings.ReplaceAll(pod.Status.PodIP, ".", "-")
			chains = append(chains, fmt.Sprintf("chain %s {\n%sdrop\n}\n", name, strings.Join(rules, "")))
			jumps = append(jumps, fmt.Sprintf("%s : jump %s", pod.Status.PodIP, name))
		}
	}
	text := "table ip policies {}\ndelete table ip policies\ntable ip policies {\n" + strings.Join(chains, "")
	text += "chain forward {\ntype filter hook forward priority 0; policy accept;\nct state established,related accept\n"
	if len(jumps) > 0 {
		text += "ip daddr vmap { " + strings.Join(jumps, ", ") + " }\n"
	}
	return text + "}\n}\n"
}

// isIngress also returns true for a policy without types.
func isIngress(policy *networking.NetworkPolicy) bool {
	types := policy.Spec.PolicyTypes
	return len(types) == 0 || slices.Contains(types, networking.PolicyTypeIngress)
}

// accepts returns one line for each peer and port of a rule. A rule without peers or ports is open to all.
func accepts(all cluster, pod *core.Pod, namespace string, rule networking.NetworkPolicyIngressRule) []string {
	sources := []string{""}
	if len(rule.From) > 0 {
		sources = nil
		for _, peer := range rule.From {
			sources = append(sources, addresses(all, namespace, peer)...)
		}
	}
	targets := []string{""}
	if len(rule.Ports) > 0 {
		targets = nil
		for _, port := range rule.Ports {
			targets = append(targets, ports(pod, port)...)
		}
	}
	var lines []string
	for _, source := range sources {
		for _, target := range targets {
			lines = append(lines, source+target+"accept\n")
		}
	}
	return lines
}

// addresses returns the matches of a peer: pods as one set, or a block without its exceptions.
func addresses(all cluster, namespace string, peer networking.NetworkPolicyPeer) []string {
	if block := peer.IPBlock; block != nil {
		match := "ip saddr " + block.CIDR + " "
		if len(block.Except) > 0 {
			match += "ip saddr != { " + strings.Join(block.Except, ", ") + " } "
		}
		return []string{match}
	}
	var found []string
	for _, pod := range all.pods {
		near := pod.Namespace == namespace
		if peer.NamespaceSelector != nil {
			near = matches(peer.NamespaceSelector, all.namespaces[pod.Namespace])
		}
		if near && (peer.PodSelector == nil || matches(peer.PodSelector, pod.Labels)) {
			found = append(found, pod.Status.PodIP)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return []string{"ip saddr { " + strings.Join(found, ", ") + " } "}
}

// ports returns the matches of a port: by number, as a range, or by the name of a container's port.
func ports(pod *core.Pod, port networking.NetworkPolicyPort) []string {
	protocol := core.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	name := strings.ToLower(string(protocol))
	switch {
	case port.Port == nil:
		return []string{"meta l4proto " + name + " "}
	case port.Port.Type == intstr.Int && port.EndPort != nil:
		return []string{fmt.Sprintf("%s dport %d-%d ", name, port.Port.IntVal, *port.EndPort)}
	case port.Port.Type == intstr.Int:
		return []string{fmt.Sprintf("%s dport %d ", name, port.Port.IntVal)}
	}
	var found []string
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, named := range container.Ports {
			if named.Name == port.Port.StrVal && named.Protocol == protocol {
				found = append(found, fmt.Sprintf("%s dport %d ", name, named.ContainerPort))
			}
		}
	}
	return found
}

// matches treats an invalid selector, which the API server rejects, as one that selects nothing.
func matches(selector *meta.LabelSelector, set labels.Set) bool {
	parsed, err := meta.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(set)
}
