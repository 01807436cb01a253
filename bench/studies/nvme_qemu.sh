#!/bin/sh
# Boots a Linux kernel under QEMU (no KVM) with an emulated NVMe disk and IOMMU, and runs JOB there with nvme_paths and vfio_nvme.
# The clock counts instructions (-icount): times in the guest are instructions in nanoseconds.
#   nvme_qemu.sh VMLINUZ MODULES_FOLDER JOB.sh     (busybox-static, cpio, qemu-system-x86; static programs beside this script)
# In JOB: nvme_paths direct /dev/nvme0n1 1048576 600 4; nvme_paths command /dev/ng0n1 1048576 600 4
# For vfio_nvme: insmod /lib/vfio.ko, vfio_virqfd.ko, vfio_iommu_type1.ko, vfio-pci-core.ko, vfio-pci.ko (irqbypass.ko first where it is a module),
# write vfio-pci into the device's driver_override, its address into driver/unbind and drivers_probe; then vfio_nvme ADDRESS GROUP 1048576 600 4.
set -e
here=$(dirname "$0"); work=$(mktemp -d); root=$work/root
mkdir -p $root/bin $root/dev $root/proc $root/sys $root/lib
cp "$(command -v busybox)" "$here/nvme_paths" "$here/vfio_nvme" $root/bin
find "$2" \( -name 'vfio*.ko' -o -name irqbypass.ko \) -exec cp {} $root/lib \;
cp "$3" $root/job
cat > $root/init <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
sh /job; poweroff -f
EOF
chmod +x $root/init
(cd $root && find . | cpio -o -H newc --quiet | gzip -1) > $work/initrd.gz
head -c 256M /dev/urandom > $work/disk.img
qemu-system-x86_64 -M q35,kernel-irqchip=split -accel tcg,thread=single -icount shift=0,sleep=off -cpu max -m 1536 -smp 1 -nographic -no-reboot -nodefaults -serial stdio \
  -device intel-iommu,intremap=on,caching-mode=on -kernel "$1" -initrd $work/initrd.gz -append "console=ttyS0 quiet panic=-1 intel_iommu=${IOMMU:-off} mitigations=off" \
  -drive file=$work/disk.img,if=none,id=d,format=raw,cache=none -device nvme,drive=d,serial=x,mdts=8 < /dev/null
rm -r $work
