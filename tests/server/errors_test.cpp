#include "app/server/errors.h"

#include <gtest/gtest.h>

namespace millrace::server {
namespace {

TEST(WithoutFolders, LeavesNamesOfFilesAndWholeUrls) {
  EXPECT_EQ(without_folders("/tmp/a/model.gguf: no such file"), "model.gguf: no such file");
  EXPECT_EQ(without_folders("cannot open '/tmp/model.gguf'"), "cannot open 'model.gguf'");
  EXPECT_EQ(without_folders("at:/tmp/a/model.gguf"), "at:model.gguf");
  EXPECT_EQ(without_folders("//tmp/model.gguf"), "model.gguf");
  EXPECT_EQ(without_folders("POST /v1/models: there is no such path"), "POST /v1/models: there is no such path");
  for (const char* whole :
       {"cannot reach https://huggingface.co (no host)", "http://127.0.0.1:8080/tmp/x is away", "://", "/", ""})
    EXPECT_EQ(without_folders(whole), whole);
}

}  // namespace
}  // namespace millrace::server
