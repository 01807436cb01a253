// What the tests of DirectStorage share: the state of the stand-in for its library, and a backend that is open for a
// test.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "storage/storage_fixture.h"
#include "storage/win32/directstorage.h"
#include "storage/win32/fake_dstorage.h"
#include "storage/win32/system.h"

namespace millrace::storage {

inline FakeDirectStorage& fake() {
  static FakeDirectStorage* const state = [] {
    const HMODULE library = load_system_library(L"dstorage.dll");
    const auto get = reinterpret_cast<FakeDirectStorage* (*)()>(
        reinterpret_cast<void*>(GetProcAddress(library, "fake_dstorage_state")));
    return get();
  }();
  return *state;
}

class DirectStorageTest : public testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
  void TearDown() override {
    backend_.reset();
    EXPECT_EQ(fake().queues, 0);
    EXPECT_EQ(fake().files, 0);
  }
  void open(const std::string& path, const DirectStorageOptions& options = {}) {
    auto opened = open_directstorage({path}, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    backend_ = std::move(*opened);
  }
  void expect_right(std::uint64_t offset, std::uint64_t bytes) {
    const Destination to(offset, bytes);
    const Status status = read_now(*backend_, to.read());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(to.first_wrong(), bytes);
    EXPECT_TRUE(to.guards_stand());
  }
  std::unique_ptr<Backend> backend_;
};

}  // namespace millrace::storage
