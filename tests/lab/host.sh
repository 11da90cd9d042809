# One host, from power on: its root, its network, its sshd. Runs as pid 1 of `unshare --net --mount --pid --uts --ipc`
# started in the lab's namespaces. HOST is its folder, LAB_NETWORK the lab's network namespace.
set -euo pipefail

root=$HOST/root
mount --rbind "$LAB/root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if mountpoint -q /sys/fs/cgroup; then mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"; fi
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=0755 run "$root/run"
mount -t tmpfs -o mode=0755 log "$root/var/log"
mount --bind "$HOST/disk/var-tmp" "$root/var/tmp"
mount --bind "$HOST/disk/crontabs" "$root/var/spool/cron/crontabs"
mount --bind "$HOME_DISK" "$root/home"
for file in "$HOST"/etc/*; do mount --bind "$file" "$root/etc/${file##*/}"; done
for path in $SHARED_PATHS; do # again, if a folder above has just covered it: a checkout in /home, a venv in /tmp
    if ! [ "$path" -ef "$root$path" ]; then
        mkdir -p "$root$path"
        mount --rbind "$path" "$root$path"
        mount -o remount,bind,ro "$root$path"
    fi
done
if [ -e "$HOST/boot_id" ]; then mount --bind "$HOST/boot_id" "$root/proc/sys/kernel/random/boot_id"; fi
mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . .
umount -l .

hostname "$NAME"
mkdir -m 0755 /run/sshd /run/lock
ip -batch - <<EOF
link set lo up
link add $SSH_NIC address $SSH_MAC type veth peer name $SSH_PORT netns $LAB_NETWORK
link add $CLUSTER_NIC address $CLUSTER_MAC type veth peer name $CLUSTER_PORT netns $LAB_NETWORK
address add $ADDRESS/16 dev $SSH_NIC
address add $CLUSTER_ADDRESS/16 dev $CLUSTER_NIC
link set $SSH_NIC up
link set $CLUSTER_NIC up
link add docker0 type bridge
link add veth0 type veth peer name container0
link set veth0 master docker0
address add 172.17.0.1/16 dev docker0
link set docker0 up
link set veth0 up
link set container0 up
EOF
nsenter --net="$LAB_NETWORK" ip -batch - <<EOF
link set $SSH_PORT master ssh up
link set $CLUSTER_PORT master cluster up
EOF
"$SSHD" -E /var/log/sshd.log

# Stay as pid 1 and reap what is left to it. Only SIGKILL from outside ends a host: that is a power cut.
while :; do sleep infinity & wait $! || true; done
