// policies enforces the ingress rules of NetworkPolicies on one node, with nftables.
//
// It stands in for the network plugin of a user's cluster in the end-to-end tests. It watches pods, namespaces and
// policies, and replaces all rules of the node when one of them changes. Egress rules, SCTP and IPv6 are not
// covered.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Changes of one burst are applied together.
const pause = 100 * time.Millisecond

func main() {
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := enforce(ctx, os.Getenv("NODE_NAME")); err != nil {
		log.Fatal(err)
	}
}

// enforce keeps the rules of a node up to date until the context ends.
func enforce(ctx context.Context, node string) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.Host = "https://" + os.Getenv("CONTROL_PLANE_ENDPOINT") // kube-proxy may not run yet
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	namespaces := factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()
	changed := make(chan struct{}, 1)
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		if _, err := informer.AddEventHandler(notify(changed)); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	applied := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		time.Sleep(pause)
		// Listing from an informer's own cache does not fail.
		allPods, _ := pods.Lister().List(labels.Everything())
		allNamespaces, _ := namespaces.Lister().List(labels.Everything())
		allPolicies, _ := policies.Lister().List(labels.Everything())
		rules := ruleset(node, newCluster(allPods, allNamespaces), allPolicies)
		if rules == applied {
			continue
		}
		if err := load(rules); err != nil {
			return err
		}
		applied = rules
		log.Printf("%d pods of this node are isolated", strings.Count(rules, ": jump "))
	}
}

// notify returns a handler that leaves one token in the channel for any number of changes.
func notify(changed chan struct{}) cache.ResourceEventHandler {
	send := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { send() },
		UpdateFunc: func(any, any) { send() },
		DeleteFunc: func(any) { send() },
	}
}

// load replaces the table in one transaction.
func load(rules string) error {
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s\n%s", err, output, rules)
	}
	return nil
}
