// Requests while layers are still on their way to RAM: the same bits, errors that heal, and an end at any time.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

#include "cuda_engine/on_gpu.h"
#include "engine/service.h"
#include "engine/support.h"
#include "synth-model/write.h"

namespace millrace::engine {
namespace {

using namespace test;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::int64_t kVocab = 500;
/// The head, the last norm and the embedding are read before the layers, in fewer reads than these.
constexpr std::uint64_t kReadsOfLoad = 12;
/// Sixteen layers have more reads than these, sixteen of which are under way at once.
constexpr std::uint64_t kReadsOfFill = 100;

storage::Fault stall(std::uint64_t ms, std::uint64_t after = kReadsOfLoad, std::uint64_t count = kReadsOfFill) {
  return {.kind = storage::Fault::Kind::stall, .after_reads = after, .count = count, .stall_ms = ms};
}

class GpuRamFill : public OnGpu {
 protected:
  static void SetUpTestSuite() {
    if (!device::gpus().ok()) return;
    path_ = (fs::temp_directory_path() / fmt::format("millrace-ram-fill-{}.gguf", getpid())).string();
    synth::Shape shape;
    shape.layers = 16, shape.dim = 256, shape.ff = 512, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 64;
    shape.vocab = kVocab;
    const auto written = synth::write(path_, shape, {});
    ASSERT_TRUE(written.ok()) << written.status().message();
  }
  static void TearDownTestSuite() {
    if (!path_.empty()) fs::remove(path_);
  }

  static EngineOptions streaming(const char* pins = "0-=ram", int share = 0) {
    EngineOptions options;
    options.model.path = path_;
    options.device.choice = DeviceChoice::cuda;
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = 64;
    options.device.threads = 2;
    if (pins[0] != '\0') {
      options.memory.pins = *parse_pins(pins);
      options.memory.cpu_share_percent = share;
    }
    return options;
  }
  static Request request() {
    std::vector<TokenId> prompt;
    for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<TokenId>(5 + i * 37 % (kVocab - 5)));
    Request request = greedy(prompt, 6);
    request.ignore_end_tokens = true;
    return request;
  }
  struct Answer {
    Result result;
    std::vector<float> logits;
  };
  static Answer ask(Engine& engine, const std::atomic<bool>* stop = nullptr) {
    Answer answer;
    Request asked = request();
    keep_logits(asked, answer.logits);
    answer.result = engine.run(std::move(asked), nullptr, stop);
    return answer;
  }
  static std::vector<float> logits_of(const EngineOptions& options) {
    const auto engine = make(options);
    if (engine == nullptr) return {};
    Answer answer = ask(*engine);
    EXPECT_EQ(answer.result.finish, Finish::length) << answer.result.status.message();
    return std::move(answer.logits);
  }
  static std::string path_;
};
std::string GpuRamFill::path_;

/// What an engine tells of its loading.
struct Told {
  std::atomic<bool> created{false}, refuses{false};
  int in_create = 0, in_passes = 0, ends = 0;
  bool falls = false;
  std::uint64_t last = 0, total = 0, first_in_passes = 0;
  void listen(EngineOptions& options) {
    options.watch.on_load = [this](std::uint64_t done, std::uint64_t all) {
      falls = falls || done < last;
      last = done;
      total = all;
      if (created && in_passes == 0) first_in_passes = done;
      ++(created ? in_passes : in_create);
      return !refuses;
    };
    options.watch.on_load_end = [this] { ++ends; };
  }
};

TEST_F(GpuRamFill, APassThatOvertakesTheFillGivesTheSameBitsAndTellsHowFarItIs) {
  struct Case {
    const char* pins;
    int share;
  };
  const std::vector<float> resident = logits_of(streaming(""));
  for (const Case& c : {Case{"0-=ram", 0}, Case{"0-=ram", 50}, Case{"1-=ram", 95}, Case{"0=ram,1=disk,2-=ram", 0},
                        Case{"0-7=ram,8-=disk", 50}, Case{"0=disk,1=vram,2-=ram", 0}}) {
    SCOPED_TRACE(fmt::format("{} share {}", c.pins, c.share));
    const std::vector<float> unhurried = logits_of(streaming(c.pins, c.share));
    if (c.share == 0) expect_same_bits(unhurried, resident);
    EngineOptions options = streaming(c.pins, c.share);
    options.storage.faults.push_back(stall(100));
    Told told;
    told.listen(options);
    const auto begin = Clock::now();
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    const auto created = Clock::now() - begin;
    EXPECT_LT(told.last, told.total) << "create() waited for RAM";
    EXPECT_EQ(told.ends, 1);
    told.created = true;
    const Answer answer = ask(*engine);
    ASSERT_EQ(answer.result.finish, Finish::length) << answer.result.status.message();
    expect_same_bits(answer.logits, unhurried);
    EXPECT_GE(told.in_passes, 2) << "the pass never waited: created in "
                                 << std::chrono::duration<double>(created).count() << " s";
    EXPECT_LT(told.first_in_passes, told.total);
    EXPECT_FALSE(told.falls);
    EXPECT_EQ(told.last, told.total) << "not all of it came";
    EXPECT_EQ(told.ends, 2) << "one for create(), one for the pass that waited";
    const int said = told.in_passes;
    expect_same_bits(ask(*engine).logits, unhurried);
    EXPECT_EQ(told.in_passes, said) << "nothing was left to tell";
    EXPECT_EQ(told.ends, 2);
  }
}

TEST_F(GpuRamFill, AReadErrorFailsTheFirstRequestAndTheNextIsRight) {
  for (const int share : {0, 50}) {
    const std::vector<float> right = logits_of(streaming("0-=ram", share));
    int failed = 0;
    for (const auto kind : {storage::Fault::Kind::eio, storage::Fault::Kind::short_read}) {
      for (const std::uint64_t after : {kReadsOfLoad, kReadsOfLoad + 5, kReadsOfLoad + 20, kReadsOfLoad + 60}) {
        SCOPED_TRACE(
            fmt::format("share {}, {} read {}", share, kind == storage::Fault::Kind::eio ? "eio" : "short", after));
        EngineOptions options = streaming("0-=ram", share);
        options.storage.faults.push_back({.kind = kind, .after_reads = after});
        const auto engine = make(options);
        ASSERT_NE(engine, nullptr);
        const Answer first = ask(*engine);
        ASSERT_EQ(first.result.finish, Finish::error) << "the fault hit nothing";
        ++failed;
        EXPECT_EQ(first.result.status.code(), Code::io_error);
        EXPECT_NE(first.result.status.message().find("injected fault"), std::string::npos)
            << first.result.status.message();
        EXPECT_EQ(first.result.text, "");
        for (int i = 0; i < 2; ++i) {
          const Answer next = ask(*engine);
          ASSERT_EQ(next.result.finish, Finish::length) << next.result.status.message();
          expect_same_bits(next.logits, right);
        }
      }
    }
    EXPECT_EQ(failed, 8);
  }
}

TEST_F(GpuRamFill, AnErrorThatLastsFailsEveryRequestAndNotTheProcess) {
  EngineOptions options = streaming();
  options.storage.faults.push_back(
      {.kind = storage::Fault::Kind::eio, .after_reads = kReadsOfLoad + 30, .count = 1'000'000});
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 4; ++i) {
    const Answer answer = ask(*engine);
    EXPECT_EQ(answer.result.finish, Finish::error) << i;
    EXPECT_EQ(answer.result.status.code(), Code::io_error) << answer.result.status.message();
  }
  expect_same_bits(logits_of(streaming()), logits_of(streaming("")));  // the GPU took no harm
}

TEST_F(GpuRamFill, AFileThatIsCutWhileRamFillsEndsTheRequestAndNotTheProcess) {
  const std::string copy = path_ + ".cut";
  fs::copy_file(path_, copy, fs::copy_options::overwrite_existing);
  EngineOptions options = streaming();
  options.model.path = copy;
  options.storage.faults.push_back(stall(300));
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  fs::resize_file(copy, fs::file_size(copy) / 4);
  for (int i = 0; i < 2; ++i) {
    const Answer answer = ask(*engine);
    EXPECT_EQ(answer.result.finish, Finish::error);
    EXPECT_EQ(answer.result.text, "") << "no token of a pass over a cut file may be believed";
    EXPECT_FALSE(answer.result.status.message().empty());
  }
  fs::remove(copy);
}

TEST_F(GpuRamFill, ARequestThatWaitsIsCancelledAtOnceAndTheFillGoesOn) {
  const std::vector<float> right = logits_of(streaming());
  for (const bool by_callback : {false, true}) {
    SCOPED_TRACE(by_callback ? "on_load returns false" : "the stop flag");
    EngineOptions options = streaming();
    options.storage.faults.push_back(stall(2000, kReadsOfLoad, 40));
    Told told;
    told.listen(options);
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    told.created = true;
    std::atomic<bool> stop{false};
    std::thread canceller([&] {
      std::this_thread::sleep_for(milliseconds(300));
      (by_callback ? told.refuses : stop) = true;
    });
    const auto begin = Clock::now();
    const Answer cancelled = ask(*engine, by_callback ? nullptr : &stop);
    const auto took = Clock::now() - begin;
    canceller.join();
    EXPECT_EQ(cancelled.result.finish, Finish::cancelled) << cancelled.result.status.message();
    EXPECT_LT(took, milliseconds(1200)) << "it waited for the read";
    EXPECT_EQ(told.ends, 2) << "the wait that was told is over";
    told.refuses = false;
    const Answer next = ask(*engine);
    ASSERT_EQ(next.result.finish, Finish::length) << next.result.status.message();
    expect_same_bits(next.logits, right);
  }
}

TEST_F(GpuRamFill, DestroyingWhileRamFillsStartsNoMoreReads) {
  // All of it would take seven rounds of 1.5 s.
  for (const bool waits : {false, true}) {
    SCOPED_TRACE(waits ? "a request waits" : "nobody waits");
    EngineOptions options = streaming();
    options.storage.faults.push_back(stall(1500, kReadsOfLoad, 1000));
    auto service = Service::start(options);
    ASSERT_TRUE(service.ok()) << service.status().message();
    std::promise<Finish> finish;
    if (waits) {
      const auto id = (*service)->submit(request(), [&](Result result) { finish.set_value(result.finish); });
      ASSERT_TRUE(id.ok());
      std::this_thread::sleep_for(milliseconds(200));
    }
    const auto begin = Clock::now();
    (*service)->shutdown(milliseconds(0));
    EXPECT_LT(Clock::now() - begin, milliseconds(1000)) << "the request did not end";
    if (waits) {
      EXPECT_EQ(finish.get_future().get(), Finish::cancelled);
    }
    service->reset();
    EXPECT_LT(Clock::now() - begin, milliseconds(4000)) << "reads were started although nobody wants them";
  }
}

}  // namespace
}  // namespace millrace::engine
