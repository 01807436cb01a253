// How a server is set up. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "app/server/http.h"
#include "app/store/outside.h"
#include "app/store/store.h"
#include "engine/model_manager.h"

namespace millrace::server {

constexpr int kDefaultPort = 11434;
/// What clients that look for Ollama's version are told: three numbers, new enough for those that ask for streaming
/// tools, and for Codex, which asks for 0.13.4.
constexpr const char* kOllamaVersion = "0.13.5";

/// How long the server waits.
struct Patience {
  std::chrono::milliseconds grace{3500};        // for open streams at the end: with it all ends within 5 s
  std::chrono::milliseconds drain_quiet{3000};  // a balancer asks each second, and believes the second answer
  std::chrono::milliseconds keep_line{15'000};  // silence in a stream after which a comment is sent
};

/// Who may call, and whom the server calls for them.
struct Access {
  std::vector<std::string> api_keys;              // empty: none is asked for
  std::vector<std::string> hosts;                 // names in Host beyond those of this machine; "*": any
  std::vector<std::string> origins;               // of pages that may call, beyond those of this machine; "*": any
  std::vector<store::OutsideHost> picture_hosts;  // from which pictures are fetched; empty: none is
  std::chrono::seconds picture_patience{20};      // for the pictures of a request
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = kDefaultPort;  // 0: any that is free
  Access access;
  std::vector<std::string> model_paths;  // GGUF files or folders of them, beside the models of the store
  std::string store_root = store::Store::default_root();
  std::string preload;  // a model to load at once, and to keep; empty: none
  engine::ModelManager::Options models;
  HttpLimits http;
  LogFormat log_format = LogFormat::off;  // of the request log
  Patience patience;
};

}  // namespace millrace::server
