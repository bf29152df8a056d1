#!/bin/sh
# Runs in the node's root file system. Copies the tools of kube-proxy, of the pod network and of the volume helper
# into $1: a shell, iptables with its plugins, nft, ip, conntrack, and their libraries.
set -eu
out=$1
mkdir -p "$out/usr/bin" "$out/usr/sbin" "$out/usr/lib" "$out/usr/lib64" "$out/etc" "$out/root" "$out/run" "$out/var/lib/misc"
mkdir -m 1777 "$out/tmp"
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$out/$folder"; done

# Copy all plugins, not only those that one test run loads: a Service with two endpoints needs libxt_statistic,
# which needs libm. Without them, kube-proxy fails although the node is Ready.
programs="/bin/busybox /bin/ip /usr/sbin/nft /usr/sbin/conntrack /usr/sbin/xtables-nft-multi $(ls /usr/lib/*/xtables/*.so)"
cp -L --parents $programs "$out"
libraries=$(for file in $programs; do ldd "$file" 2>/dev/null || true; done | grep -o '/[^ ]*' | sort -u)
cp -L --parents $libraries "$out"

for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -s xtables-nft-multi "$out/usr/sbin/$name"
done
for name in $(busybox --list); do
  [ -e "$out/usr/bin/$name" ] || [ -e "$out/usr/sbin/$name" ] || ln -s busybox "$out/usr/bin/$name"
done
