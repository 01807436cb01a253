#include "vision/beside.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "text/gguf_image.h"

namespace millrace::vision {
namespace {

namespace fs = std::filesystem;

class Beside : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("millrace-beside-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    write("model.gguf",
          test::GgufImage().text("general.architecture", "qwen3vl").number("qwen3vl.embedding_length", 64));
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const test::GgufImage& file) {
    const std::vector<std::byte> bytes = file.bytes();
    std::ofstream(path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void write_mmproj(const std::string& name, std::uint32_t width, const char* projector = "qwen3vl_merger") {
    write(name, test::GgufImage()
                    .text("general.architecture", "clip")
                    .text("clip.projector_type", projector)
                    .number("clip.vision.projection_dim", width));
  }

  fs::path folder_;
};

TEST_F(Beside, TheOneThatFitsIsTaken) {
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), "");
  write_mmproj("Other-MMPROJ.gguf", 128);
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), "");
  write_mmproj("mmproj-F16.gguf", 64);
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), path("mmproj-F16.gguf"));
  EXPECT_EQ(mmproj_for(path("mmproj-F16.gguf"), ""), "");
}

TEST_F(Beside, ATowerOfAnotherFamilyIsLeftAlone) {
  write_mmproj("mmproj-gemma.gguf", 64, "gemma3");
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), "");
  write_mmproj("mmproj-F16.gguf", 64);
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), path("mmproj-F16.gguf"));
  EXPECT_TRUE(check_belongs(Projector::gemma4u, "gemma4").ok());
  EXPECT_NE(check_belongs(Projector::gemma3, "qwen3vl").message().find("gemma3"), std::string::npos);
}

TEST_F(Beside, OfTwoNoneIsTakenAndWhatIsGivenIs) {
  write_mmproj("mmproj-F16.gguf", 64);
  write_mmproj("mmproj-Q8_0.gguf", 64);
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), "");
  EXPECT_EQ(mmproj_for(path("model.gguf"), path("mmproj-Q8_0.gguf")), path("mmproj-Q8_0.gguf"));
  EXPECT_EQ(mmproj_for(path("model.gguf"), "off"), "");
}

TEST_F(Beside, WhatCannotBeReadIsLeftAlone) {
  write_mmproj("mmproj-strange.gguf", 64, "of another kind");
  std::ofstream(path("mmproj-torn.gguf")) << "GGUF";
  EXPECT_EQ(mmproj_for(path("model.gguf"), ""), "");
  EXPECT_EQ(mmproj_for(path("absent/model.gguf"), ""), "");
}

}  // namespace
}  // namespace millrace::vision
