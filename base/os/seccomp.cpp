#include "base/os/seccomp.h"

#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace weft::os {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Younger than the headers of some systems; equal on all architectures.
constexpr uint32_t kIoUringSetup = 425, kIoUringEnter = 426, kIoUringRegister = 427;
constexpr uint32_t kOpenTree = 428, kMoveMount = 429, kFsopen = 430, kFsconfig = 431,
                   kFsmount = 432, kFspick = 433, kPidfdGetfd = 438, kPidfdSendSignal = 424,
                   kMountSetattr = 442, kProcessMadvise = 440, kClone3 = 435;

// Refused whatever their arguments. Computing needs none of them; each is a way to other programs,
// other processes, the kernel's insides or the machine's settings.
constexpr uint32_t kRefused[] = {
    __NR_execve,
    __NR_execveat,  // other programs
#ifdef __NR_fork
    __NR_fork,
    __NR_vfork,
#endif
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,  // other processes
    __NR_kcmp,
    kPidfdGetfd,
    kPidfdSendSignal,
    kProcessMadvise,
    __NR_tkill,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,  // file systems
    kOpenTree,
    kMoveMount,
    kFsopen,
    kFsconfig,
    kFsmount,
    kFspick,
    kMountSetattr,
    __NR_swapon,
    __NR_swapoff,
    __NR_quotactl,
    __NR_open_by_handle_at,
    __NR_fanotify_init,
    __NR_unshare,
    __NR_setns,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,  // the kernel
    __NR_kexec_load,
    __NR_reboot,
    __NR_bpf,
    __NR_perf_event_open,
    __NR_syslog,
    __NR_userfaultfd,
    kIoUringSetup,
    kIoUringEnter,
    kIoUringRegister,
    __NR_keyctl,
    __NR_add_key,
    __NR_request_key,  // keys
    __NR_acct,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_adjtimex,  // the machine
    __NR_clock_adjtime,
    __NR_sethostname,
    __NR_setdomainname,
    __NR_vhangup,
    __NR_personality,
#ifdef __NR_kexec_file_load
    __NR_kexec_file_load,
#endif
#ifdef __NR_iopl
    __NR_iopl,
    __NR_ioperm,
    __NR_modify_ldt,
#endif
};

// The first argument of these is a process: this one only.
constexpr uint32_t kOfThisProcess[] = {__NR_kill, __NR_tgkill, __NR_rt_sigqueueinfo,
                                       __NR_rt_tgsigqueueinfo};

// A program for the kernel's packet filter: tests fall through to the next one, the end allows.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    if_equal(kArchitecture, 1);
    answer(SECCOMP_RET_KILL_PROCESS);
    load_number();
  }

  void refuse(uint32_t call, int error = EPERM) {
    if_not_skip(BPF_JEQ, call, 1);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error));
  }

  // Refused unless argument `index` is one of the values.
  void refuse_unless(uint32_t call, unsigned index, std::initializer_list<uint32_t> values,
                     int error = EPERM) {
    const auto count = static_cast<uint8_t>(values.size());
    if_not_skip(BPF_JEQ, call, static_cast<uint8_t>(count + 3));
    load_argument(index);
    uint8_t left = count;  // to the reload behind the answer
    for (const uint32_t value : values) if_equal(value, left--);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error));
    load_number();
  }

  // Refused if argument `index` is one of the values.
  void refuse_if(uint32_t call, unsigned index, std::initializer_list<uint32_t> values) {
    const auto count = static_cast<uint8_t>(values.size());
    if_not_skip(BPF_JEQ, call, static_cast<uint8_t>(2 * count + 2));
    load_argument(index);
    for (const uint32_t value : values) {
      if_not_skip(BPF_JEQ, value, 1);
      answer(SECCOMP_RET_ERRNO | EPERM);
    }
    load_number();
  }

  // Refused unless argument 0 has the bit.
  void refuse_without(uint32_t call, uint32_t bit) {
    if_not_skip(BPF_JEQ, call, 4);
    load_argument(0);
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bit, 1, 0));
    answer(SECCOMP_RET_ERRNO | EPERM);
    load_number();
  }

  void refuse_from(uint32_t first_call) {
    if_not_skip(BPF_JGE, first_call, 1);
    answer(SECCOMP_RET_ERRNO | ENOSYS);
  }

  bool install() {
    answer(SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    // SPEC_ALLOW: without it kernels before 5.16 slow the whole process down.
    const unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    return ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
  }

 private:
  void load(size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  }
  void load_number() { load(offsetof(seccomp_data, nr)); }
  // The low half: the machines are little-endian, and no argument looked at is wider.
  void load_argument(unsigned index) {
    load(offsetof(seccomp_data, args) + index * sizeof(uint64_t));
  }
  void answer(uint32_t action) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, action)); }
  void if_equal(uint32_t value, uint8_t skip) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, skip, 0));
  }
  void if_not_skip(uint16_t test, uint32_t value, uint8_t skip) {
    code_.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, 0, skip));
  }

  std::vector<sock_filter> code_;
};

}  // namespace

Result<std::string> restrict_calls() {
  if (kArchitecture == 0) {
    return make_error(Code::kUnavailable, "seccomp: only for x86-64 and AArch64");
  }
  Filter filter;
#if defined(__x86_64__)
  constexpr uint32_t kX32 = 0x40000000;  // the same calls under other numbers
  filter.refuse_from(kX32);
#endif
  for (const uint32_t call : kRefused) filter.refuse(call);
  const auto self = static_cast<uint32_t>(::getpid());
  for (const uint32_t call : kOfThisProcess) filter.refuse_unless(call, 0, {self});
  filter.refuse_unless(__NR_prlimit64, 0, {0, self});
  // Threads, no processes: a process would outlive the kill of its parent. The flags of clone3 lie
  // in memory, where a filter cannot look; the C library falls back to clone.
  filter.refuse(kClone3, ENOSYS);
  filter.refuse_without(__NR_clone, CLONE_THREAD);
  // Typing into the terminal of who started us.
  filter.refuse_if(__NR_ioctl, 1, {TIOCSTI, TIOCLINUX});
  filter.refuse_unless(__NR_socket, 0, {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}, EAFNOSUPPORT);
  if (!filter.install()) {
    return make_error(Code::kUnavailable, fmt::format("seccomp: {}", std::strerror(errno)));
  }
  return fmt::format("seccomp ({} calls refused, no other programs or processes)",
                     std::size(kRefused) + 1);
}

}  // namespace weft::os
