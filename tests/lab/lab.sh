# The lab's own namespaces: the two networks, the machine that the controller runs on, and the root hosts are made from.
# Runs as pid 1 of `unshare --net --mount --pid --uts --ipc`; LAB is its folder, the other variables come from lab.py.
set -euo pipefail
[ $$ = 1 ] || { echo "$0 is for the lab alone: it ends with killing all processes that it sees" >&2; exit 2; }

hostname controller
mount --bind "$LAB/controller.etc/hosts" /etc/hosts
mount --bind "$LAB/controller.etc/passwd" /etc/passwd

# The default sysfs shows the interfaces of the machine, a new one those of this network namespace.
if mountpoint -q /sys/fs/cgroup; then
    mount --rbind /sys/fs/cgroup "$LAB/root"
    mount -t sysfs sysfs /sys
    mount --move "$LAB/root" /sys/fs/cgroup
else
    mount -t sysfs sysfs /sys
fi

# A bridge without an address of its own takes that of a port, another one when ports come and go: the hosts would then
# answer the controller to an address that is no more.
ip -batch - <<EOF
link set lo up
link add ssh address 02:00:0a:4d:ff:fe type bridge mcast_snooping 0
link add cluster type bridge mcast_snooping 0
link set ssh up
link set cluster up
address add $CONTROLLER_ADDRESS/16 dev ssh
address add $SILENT_DNS/16 dev ssh
EOF
nft -f - <<EOF
table inet dns { chain input { type filter hook input priority 0; ip daddr $SILENT_DNS drop; }; }
EOF

# What all hosts have in common. Nothing of the machine is in it but what is named here, and none of that is writable.
root=$LAB/root
mount -t tmpfs -o mode=0755 root "$root"
share() { # make a path of the machine readable in the hosts; new parents are open to everyone, as /root is not
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
}
for path in /bin /sbin /lib /lib32 /lib64 /libx32 /usr /opt; do
    if [ -L $path ]; then cp -P $path "$root$path"; elif [ -d $path ]; then share $path; fi
done
if [ ! -e /usr/bin/python3 ] && [ ! -e /usr/local/bin/python3 ]; then
    mount -t tmpfs -o mode=0755 bin "$root/usr/local/bin"
    ln -s "$BASE_PYTHON" "$root/usr/local/bin/python3"
fi
for path in $SHARED_PATHS; do
    if ! [ "$path" -ef "$root$path" ]; then share "$path"; fi
done
cp -a /etc "$root/etc"
rm -rf "$root/etc/ssh" "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/mtab"
touch "$root"/etc/{resolv.conf,hostname,machine-id,hosts,passwd,group,shadow,subuid,subgid}
ln -s /proc/self/mounts "$root/etc/mtab"
mkdir -p "$root"/{dev,etc/ssh,home,proc,root,run,sys,tmp,var/log,var/tmp,var/lib,var/spool/cron/crontabs}
ln -s /run "$root/var/run"
mount --rbind /dev "$root/dev"

echo ready
# Ends when the program that made the lab closes this pipe, or dies: with pid 1 go all processes of the lab, and with
# them all hosts, mounts and networks. (bash also reaps what is left to it.) Control groups alone would outlive us.
read -r _ || true
kill -9 -1 || true
for group in /sys/fs/cgroup/memory/"${LAB##*/}"-* /sys/fs/cgroup/"${LAB##*/}"-*; do
    while [ -d "$group" ] && ! rmdir "$group"; do sleep 0.01; done
done
