// network-relay: a network with a delay, for kernels without netem. Each host is a network namespace, which gets a TUN
// device "net0" of its own; a packet from one is handed to the one whose address it goes to, so many milliseconds
// later. Rates are tc's to set, on these devices. Runs as root until its input ends.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestPacket = 65536;

struct Packet {
  Clock::time_point due;
  int to = -1;  // the device that it goes out of
  std::vector<char> bytes;
};

int fail(const std::string& what) {
  std::fprintf(stderr, "error: %s: %s\n", what.c_str(), std::strerror(errno));
  return 1;
}

/// The device "net0" in a namespace; -1 where it cannot be made. The process is in that namespace then.
int make_device(const std::string& name_space) {
  const std::string path = "/run/netns/" + name_space;
  const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0) return -1;
  const bool entered = setns(space, CLONE_NEWNET) == 0;
  close(space);
  const int device = entered ? open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
  if (device < 0) return -1;
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "net0", IFNAMSIZ - 1);
  if (ioctl(device, TUNSETIFF, &request) == 0) return device;
  close(device);
  return -1;
}

class Relay {
 public:
  explicit Relay(double delay_ms)
      : delay_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(delay_ms))) {}

  void add(std::uint32_t address, int device) {
    devices_[address] = device;
    polled_.push_back({device, POLLIN, 0});
  }

  /// Until standard input ends.
  void run() {
    polled_.push_back({STDIN_FILENO, POLLIN, 0});
    for (;;) {
      timespec wait{};
      if (!under_way_.empty()) {
        const auto left = std::max(under_way_.front().due - Clock::now(), Clock::duration::zero());
        wait.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
        wait.tv_nsec = (std::chrono::nanoseconds(left) % std::chrono::seconds(1)).count();
      }
      if (ppoll(polled_.data(), polled_.size(), under_way_.empty() ? nullptr : &wait, nullptr) > 0) {
        if (polled_.back().revents != 0) return;
        for (const pollfd& one : polled_)
          if (one.revents != 0) take_from(one.fd);
      }
      hand_on();
    }
  }

 private:
  void take_from(int device) {
    for (;;) {
      const ssize_t bytes = read(device, packet_, sizeof(packet_));
      if (bytes <= 0) return;
      if (bytes < 20 || (packet_[0] & 0xf0) != 0x40) continue;  // IPv4 alone
      std::uint32_t address = 0;
      std::memcpy(&address, packet_ + 16, sizeof(address));
      const auto to = devices_.find(address);
      if (to != devices_.end()) under_way_.push_back({Clock::now() + delay_, to->second, {packet_, packet_ + bytes}});
    }
  }

  /// Those that are due. One that the device does not take is lost, as networks lose packets.
  void hand_on() {
    for (const auto now = Clock::now(); !under_way_.empty() && under_way_.front().due <= now; under_way_.pop_front())
      if (write(under_way_.front().to, under_way_.front().bytes.data(), under_way_.front().bytes.size()) < 0) ++lost_;
  }

  const Clock::duration delay_;
  std::map<std::uint32_t, int> devices_;  // by address
  std::vector<pollfd> polled_;
  std::deque<Packet> under_way_;  // the first one is due first: all take as long
  std::int64_t lost_ = 0;
  char packet_[kLongestPacket];
};

int run(int argc, char** argv) {
  CLI::App app("Hands packets between network namespaces, each some time after it came. As root.");
  double delay_ms = 0;
  std::vector<std::string> hosts;
  app.add_option("--delay-ms", delay_ms, "One way")->required()->check(CLI::Range(0.0, 10'000.0));
  app.add_option("hosts", hosts, "NAMESPACE=ADDRESS of each")->required();
  CLI11_PARSE(app, argc, argv);
  Relay relay(delay_ms);
  for (const std::string& host : hosts) {
    const std::size_t sign = host.find('=');
    in_addr address{};
    if (sign == std::string::npos || inet_pton(AF_INET, host.c_str() + sign + 1, &address) != 1) {
      std::fprintf(stderr, "error: %s: write NAMESPACE=ADDRESS\n", host.c_str());
      return 2;
    }
    const int device = make_device(host.substr(0, sign));
    if (device < 0) return fail(host.substr(0, sign) + ": no TUN device can be made there");
    relay.add(address.s_addr, device);
  }
  prctl(PR_SET_TIMERSLACK, 1);  // else the kernel wakes it up to 50 us late
  std::puts("ready");
  std::fflush(stdout);
  relay.run();
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(argc, argv); }
