#!/bin/sh
# Runs in the node's root file system, after kind's files and ours were copied into it. Does the same as kind's
# recipe for its base image, with additions for this kind of machine.
set -eu
# systemd in a container: only the units that a node needs
rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service \
  /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
  /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/basic.target.wants/* \
  /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl*
echo ReadKMsg=no >> /etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd /sbin/init
systemctl -q enable kubelet.service containerd.service undo-mount-hacks.service
systemctl -q mask systemd-binfmt.service

# Debian's containerd and network plugins, at the paths that kind's files use
ln -sf /usr/bin/containerd /usr/bin/ctr /usr/local/bin/
mkdir -p /etc/kubernetes/manifests /opt/cni/bin
for plugin in host-local loopback portmap ptp; do cp "/usr/lib/cni/$plugin" /opt/cni/bin/; done
ctr oci spec \
  | jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
  > /etc/containerd/cri-base.json

# Without CAP_SYS_RESOURCE, no process may lower oom_score_adj: runc would fail before the container starts.
sed -i -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
  -e "s#sandbox_image = .*#sandbox_image = \"$PAUSE_IMAGE\"#" /etc/containerd/config.toml
