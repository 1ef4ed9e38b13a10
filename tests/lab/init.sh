#!/bin/bash
# Process 1 of a node, in mount, pid, uts and ipc namespaces of its own: mounts what belongs into the root folder,
# moves into it, and reaps what dies there.
# usage: bash init.sh cvs-lab-node ROOT NAME GPUS SHARED
set -eu
root=$2 name=$3 gpus=$4 shared=$5

read_only() {
    mount --rbind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
}

device() {  # NAME MODE GROUP MAJOR MINOR
    mknod -m "$2" "$root/dev/$1" c "$4" "$5"
    chroot "$root" chgrp "$3" "/dev/$1"
}

mount --bind "$root" "$root"
read_only /usr
for folder in /bin /sbin /lib /lib32 /lib64 /libx32; do
    if [ -d "$root$folder" ] && [ ! -L "$root$folder" ]; then read_only "$folder"; fi
done
mount --rbind "$shared" "$root/shared"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/sshd" "$root/run/lock"

mount -t tmpfs -o mode=755,size=16m tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue" "$root/dev/dri"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
device null 666 root 1 3
device zero 666 root 1 5
device full 666 root 1 7
device random 666 root 1 8
device urandom 666 root 1 9
device tty 666 tty 5 0
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
# They stand in for those of GPUs: they open, and read as /dev/null.
device kfd 660 render 1 3
for ((gpu = 0; gpu < gpus; gpu++)); do
    device "dri/card$gpu" 660 video 1 3
    device "dri/renderD$((128 + gpu))" 660 render 1 3
done

hostname "$name"
cd "$root"
pivot_root . mnt
exec chroot . /bin/bash -c '
    umount -l /mnt
    mount --make-rshared /
    ip link set lo up
    touch /run/cvs-lab-ready
    trap : TERM INT HUP
    while :; do sleep 86400 & wait $!; done' "$@"
