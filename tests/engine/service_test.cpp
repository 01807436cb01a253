// The thread that serves, and the models it serves.
#include "engine/service.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <thread>

#include "engine/model_manager.h"
#include "engine/support.h"
#include "fresh_folder.h"

namespace millrace::engine {
namespace {

using namespace std::chrono_literals;
using test::chat;
using test::draft_path;
using test::greedy;
using test::moe_path;
using test::roomy;

EngineOptions serving(const std::string& path, std::int64_t sequences) {
  EngineOptions options = roomy(path);
  options.demand.max_sequences = sequences;
  options.demand.context_tokens = 256;
  options.kv.share_prefixes = true;
  return options;
}

std::future<Result> submit(Service& service, Request request) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  const auto id =
      service.submit(std::move(request), [promise](Result result) { promise->set_value(std::move(result)); });
  EXPECT_TRUE(id.ok()) << id.status().message();
  return future;
}

TEST(Service, AnswersManyThreads) {
  const auto service = *Service::start(serving(draft_path(), 4));
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(submit(*service, greedy(chat(service->engine(), "What is the capital of France?"), 32)).get().text,
                  "The capital of France is Paris.");
    });
  }
  for (std::thread& thread : threads) thread.join();
  service->run([](Engine&) {});  // behind what comes after the last one's callback
  EXPECT_EQ(service->active(), 0);
  EXPECT_EQ(service->load().finished, 18u);
}

TEST(Service, CancelsAndRefusesAndReportsOnce) {
  EngineOptions options = serving(draft_path(), 1);
  options.demand.max_queue = 1;
  const auto service = *Service::start(options);
  Request endless = greedy(chat(service->engine(), "Tell me a short story."), -1);
  endless.ignore_end_tokens = true;
  std::promise<Result> done;
  const auto id = service->submit(endless, [&](Result result) { done.set_value(std::move(result)); });
  ASSERT_TRUE(id.ok());
  auto waiting = submit(*service, greedy(chat(service->engine(), "Who are you?"), 2));
  EXPECT_EQ(service->submit(endless, {}).status().code(), Code::unavailable);
  service->cancel(*id);
  EXPECT_NE(done.get_future().get().finish, Finish::error);
  EXPECT_EQ(waiting.get().tokens.size(), 2u);
  EXPECT_EQ(submit(*service, greedy({}, 2)).get().status.code(), Code::invalid_argument);
  EXPECT_TRUE(service->run([](Engine& engine) { engine.drop_shared(); }));
  service->run([](Engine& engine) { EXPECT_EQ(engine.load().kv_blocks, 0); });
}

TEST(Service, ACancelIsNeverLostOnTheWayToTheEngine) {
  constexpr int kRequests = 300;
  const auto service = *Service::start(serving(draft_path(), 2));
  Request endless = greedy(chat(service->engine(), "Tell me a short story."), -1);
  endless.ignore_end_tokens = true;
  for (int i = 0; i < kRequests; ++i) {
    std::promise<Result> done;
    const auto id = service->submit(endless, [&](Result result) { done.set_value(std::move(result)); });
    ASSERT_TRUE(id.ok());
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 100);
    while (std::chrono::steady_clock::now() < until) {
    }
    service->cancel(*id);
    ASSERT_EQ(done.get_future().get().finish, Finish::cancelled) << "request " << i;
  }
  service->run([](Engine&) {});
  EXPECT_EQ(service->load().cancelled, static_cast<std::uint64_t>(kRequests));
}

TEST(Service, ShutdownFailsWhatDoesNotEndInTime) {
  const auto service = *Service::start(serving(draft_path(), 2));
  Request endless = greedy(chat(service->engine(), "Tell me a short story."), -1);
  endless.ignore_end_tokens = true;
  auto one = submit(*service, endless), other = submit(*service, endless), third = submit(*service, endless);
  const auto begin = std::chrono::steady_clock::now();
  service->shutdown(10ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  for (auto* future : {&one, &other, &third}) {
    ASSERT_EQ(future->wait_for(0s), std::future_status::ready);
    EXPECT_NE(future->get().finish, Finish::error);
  }
  EXPECT_EQ(service->submit(endless, {}).status().code(), Code::unavailable);
  EXPECT_FALSE(service->run([](Engine&) {}));
}

ModelManager::Options managed(std::uint64_t ram) {
  ModelManager::Options options;
  options.engine = serving("", 2);
  options.engine.memory.ram_bytes = ram;
  options.patience = 200ms;
  return options;
}

TEST(ModelManager, LoadsOnceKeepsAndLetsGo) {
  ModelManager manager(managed(2'000'000'000));
  {
    const auto first = manager.use("draft", draft_path());
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_TRUE(first->loaded_now());
    const auto again = manager.use("draft", draft_path(), 50ms);
    EXPECT_FALSE(again->loaded_now());
    EXPECT_EQ((*first)->service, (*again)->service);
    EXPECT_EQ(manager.running().at(0).users, 2);
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(manager.running().size(), 1u) << "in use, however long";
  }
  for (int i = 0; i < 100 && !manager.running().empty(); ++i) std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(manager.running().empty()) << "keep_alive ran out";
  EXPECT_EQ(manager.use("none", "/nowhere.gguf").status().code(), Code::not_found);
}

TEST(ModelManager, TheLeastRecentlyUsedLeavesForTheNext) {
  ModelManager manager(managed(1'000'000'000));  // room for one and what it may want
  { ASSERT_TRUE(manager.use("draft", draft_path(), ModelManager::kForever).ok()); }
  const auto moe = manager.use("moe", moe_path());
  ASSERT_TRUE(moe.ok()) << moe.status().message();
  ASSERT_EQ(manager.running().size(), 1u);
  EXPECT_EQ(manager.running()[0].loaded->name, "moe");
}

TEST(ModelManager, WhatOthersTookIsTakenOnce) {
  ModelManager::Options options = managed(400'000'000);
  options.engine.memory.ram_taken_bytes = 150'000'000;
  ModelManager manager(options);
  const auto use = manager.use("draft", draft_path());
  ASSERT_TRUE(use.ok()) << use.status().message();
  EXPECT_EQ((*use)->service->engine().budget().cap_bytes(), 250'000'000u);
}

TEST(ModelManager, PathsToOneFileShareWhatIsLoaded) {
  const std::string link = testing::TempDir() + "/millrace-link.gguf";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(draft_path(), link);
  ModelManager manager(managed(1'000'000'000));
  const auto first = manager.use("draft", draft_path());
  const auto other = manager.use("other", link);
  ASSERT_TRUE(first.ok() && other.ok());
  EXPECT_EQ((*first)->service, (*other)->service);
  std::filesystem::remove(link);
  EXPECT_FALSE(manager.unload(link)) << "it leads nowhere now";
  EXPECT_TRUE(manager.unload(draft_path()));
}

TEST(ModelManager, AModelSeesFromTheFirstPictureOnOnceItsFileIsThere) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "millrace-sees-later";
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder.string());
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "model.gguf").string();
  std::filesystem::copy_file(MILLRACE_TEST_DATA "/reference/qwen35.gguf", path);
  ModelManager manager(managed(1'000'000'000));
  const auto service_for = [&](bool sight) {
    const auto use = manager.use("model", path, {}, {.context_tokens = 0, .sight = sight});
    EXPECT_TRUE(use.ok()) << use.status().message();
    return use.ok() ? (*use)->service : nullptr;
  };
  const auto blind = service_for(false);
  ASSERT_NE(blind, nullptr);
  EXPECT_EQ(service_for(true), blind) << "there is no file";
  std::filesystem::copy_file(MILLRACE_TEST_DATA "/vision/qwen35-mmproj.gguf", folder / "mmproj-model.gguf");
  EXPECT_EQ(service_for(false), blind) << "texts need none";
  const auto seeing = service_for(true);
  ASSERT_NE(seeing, nullptr);
  EXPECT_NE(seeing, blind);
  EXPECT_NE(seeing->engine().pictures(), nullptr);
  EXPECT_EQ(service_for(true), seeing);
  EXPECT_EQ(service_for(false), seeing);
}

TEST(ModelManager, UnloadWaitsForTheLastUser) {
  ModelManager manager(managed(1'000'000'000));
  auto use = manager.use("draft", draft_path());
  ASSERT_TRUE(use.ok());
  EXPECT_TRUE(manager.unload(draft_path()));
  EXPECT_FALSE(manager.unload(draft_path())) << "it is as good as gone";
  EXPECT_EQ(submit(*(*use)->service, greedy(chat((*use)->service->engine(), "Who are you?"), 2)).get().tokens.size(),
            2u);
  *use = {};
  for (int i = 0; i < 100 && !manager.running().empty(); ++i) std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(manager.running().empty());
}

}  // namespace
}  // namespace millrace::engine
