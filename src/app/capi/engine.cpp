// The engine's half of the C API: opaque handles around engine::Service.
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "app/capi/common.h"
#include "base/json.h"
#include "base/json_nesting.h"
#include "base/mutex.h"
#include "device/cpu.h"
#include "engine/embed.h"
#include "engine/service.h"
#include "text/conversation.h"

using namespace millrace;  // NOLINT: the whole file is the border to C

struct millrace_engine {
  std::shared_ptr<engine::Service> service;
  Mutex mutex;
  std::set<engine::Service::Id> answering MR_GUARDED_BY(mutex);
  std::atomic<std::uint64_t> cancels{0};  // calls of millrace_cancel
};

namespace {

using Json = nlohmann::ordered_json;

millrace_options default_options() {
  millrace_options options{};
  options.struct_size = sizeof(options);
  return options;
}

millrace_request default_request() {
  millrace_request request{};
  request.struct_size = sizeof(request);
  const engine::SamplerOptions sampler;
  request.max_tokens = -1;
  request.temperature = static_cast<double>(sampler.temperature);
  request.top_k = sampler.top_k;
  request.top_p = static_cast<double>(sampler.top_p);
  request.min_p = static_cast<double>(sampler.min_p);
  request.repeat_penalty = static_cast<double>(sampler.penalties.repeat);
  return request;
}

Expected<engine::EngineOptions> engine_options(const millrace_options* given) {
  MR_ASSIGN_OR_RETURN(const millrace_options options, capi::read_struct(given, default_options(), "options"));
  if (options.model_path == nullptr) return capi::refuse_null("options.model_path");
  if (options.context_tokens < 0 || options.max_sequences < 0 || options.threads < 0) {
    return error(Code::invalid_argument, "options: sizes must not be negative");
  }
  engine::EngineOptions made;
  made.model.path = options.model_path;
  const std::string device = options.device != nullptr ? options.device : "auto";
  if (device == "cpu") {
    made.device.choice = engine::DeviceChoice::cpu;
  } else if (device == "cuda") {
    made.device.choice = engine::DeviceChoice::cuda;
  } else if (device != "auto") {
    return error(Code::invalid_argument, "options.device: '{}' is none of auto, cpu, cuda", device);
  }
  made.memory.ram_bytes = options.ram_bytes;
  made.memory.vram_bytes = options.vram_bytes;
  made.demand.context_tokens = options.context_tokens;
  made.demand.max_sequences = std::max<std::int64_t>(1, options.max_sequences);
  made.device.threads = options.threads;
  auto speculate = engine::parse_speculation(options.speculate != nullptr ? options.speculate : "auto");
  if (!speculate.ok()) return speculate.status().with_context("options.speculate");
  made.speculate = std::move(*speculate);
  if (options.draft_path != nullptr) {
    if (const Status read = engine::read_draft(options.draft_path, made.speculate); !read.ok())
      return read.with_context("options.draft_path");
  }
  made.planning.find_rates = true;
  made.memory.bare_resident_bytes = device::resident_bytes();
  return made;
}

std::string written(const residency::Plan& plan, const residency::PlanOptions& options, const residency::Rates& rates,
                    millrace_form form) {
  if (form != MILLRACE_JSON) return residency::render_plan(plan, options, rates);
  Json rows = Json::array();
  for (const auto& row : plan.rows) {
    rows.push_back({{"tier", row.tier},
                    {"what", row.what},
                    {"executor", row.executor},
                    {"bound", row.bound},
                    {"units", row.units},
                    {"tiles", row.tiles},
                    {"bytes", row.bytes},
                    {"bytes_per_token", row.bytes_per_token},
                    {"milliseconds", row.milliseconds}});
  }
  const Json whole = {{"rows", rows},
                      {"resident_bytes", plan.resident_bytes},
                      {"fixed_bytes", plan.fixed_bytes},
                      {"vram_weight_bytes", plan.vram_weight_bytes},
                      {"vram_fixed_bytes", plan.vram_fixed_bytes},
                      {"vram_draft_bytes", plan.vram_draft_bytes},
                      {"vram_tower_bytes", plan.vram_tower_bytes},
                      {"expert_slots", plan.expert_slots},
                      {"ram_bytes", options.ram_bytes},
                      {"vram_bytes", options.vram_bytes}};
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Expected<Json> read_json(const char* text, Json otherwise, const char* name) {
  if (text == nullptr) return otherwise;
  if (nests_too_deep(text)) return error(Code::invalid_argument, "{}: it nests too deep", name);
  Json read = Json::parse(text, nullptr, false);
  if (read.is_discarded()) return error(Code::invalid_argument, "{}: not JSON", name);
  return read;
}

Expected<std::vector<text::TokenId>> chat_tokens(const engine::Engine& engine, const char* messages, const char* tools,
                                                 const char* variables) {
  if (messages == nullptr) return capi::refuse_null("messages_json");
  const text::ChatTemplate* chat = engine.chat_template();
  if (chat == nullptr) return engine.chat_template_status();
  text::Conversation conversation;
  MR_ASSIGN_OR_RETURN(conversation.messages, read_json(messages, Json::array(), "messages_json"));
  MR_ASSIGN_OR_RETURN(conversation.tools, read_json(tools, Json::array(), "tools_json"));
  MR_ASSIGN_OR_RETURN(conversation.options, read_json(variables, Json::object(), "variables_json"));
  MR_ASSIGN_OR_RETURN(text::Prompt prompt, chat->prompt(engine.tokenizer(), conversation));
  return std::move(prompt.ids);
}

Expected<std::vector<text::TokenId>> prompt_of(const engine::Engine& engine, const millrace_request& request) {
  if (request.messages_json != nullptr) return chat_tokens(engine, request.messages_json, nullptr, nullptr);
  if (request.prompt_tokens != nullptr) {
    return std::vector<text::TokenId>(request.prompt_tokens, request.prompt_tokens + request.prompt_token_count);
  }
  if (request.prompt == nullptr) return capi::refuse_null("messages_json, prompt or prompt_tokens");
  const text::Tokenizer& tokenizer = engine.tokenizer();
  std::vector<text::TokenId> ids = tokenizer.encode(request.prompt, text::Specials::parse);
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  return ids;
}

/// An answer on its way from the engine's thread to the caller's.
struct Stream {
  Mutex mutex;
  CondVar changed;
  std::deque<std::string> pieces MR_GUARDED_BY(mutex);
  std::optional<engine::Result> result MR_GUARDED_BY(mutex);
};

Expected<engine::Request> engine_request(const engine::Engine& engine, const millrace_request& given,
                                         const std::shared_ptr<Stream>& stream) {
  engine::Request made;
  MR_ASSIGN_OR_RETURN(made.prompt, prompt_of(engine, given));
  if (!(given.temperature >= 0) || !(given.top_p >= 0) || !(given.min_p >= 0) || !(given.repeat_penalty > 0) ||
      given.top_k < 0 || given.max_tokens < -1) {
    return error(Code::invalid_argument, "request: a sampling parameter is out of its range");
  }
  if (given.stop_count > 0 && given.stop == nullptr) return capi::refuse_null("request.stop");
  made.max_tokens = given.max_tokens;
  made.sampler.temperature = static_cast<float>(given.temperature);
  made.sampler.top_k = given.top_k;
  made.sampler.top_p = static_cast<float>(given.top_p);
  made.sampler.min_p = static_cast<float>(given.min_p);
  made.sampler.penalties.repeat = static_cast<float>(given.repeat_penalty);
  made.sampler.seed = given.seed;
  for (std::size_t i = 0; i < given.stop_count; ++i) {
    if (given.stop[i] == nullptr) return capi::refuse_null("request.stop");
    made.stop.emplace_back(given.stop[i]);
  }
  made.on_text = [stream](std::string_view text, std::span<const text::TokenId>) {
    const MutexLock lock(stream->mutex);
    stream->pieces.emplace_back(text);
    stream->changed.notify_one();
  };
  return made;
}

/// Hands pieces to the callback until the answer has ended; `cancel` is called once it wants no more.
template <typename Cancel>
engine::Result deliver(Stream& stream, millrace_text_callback callback, void* user, const Cancel& cancel) {
  bool wanted = callback != nullptr;
  MutexLock lock(stream.mutex);
  while (true) {
    stream.changed.wait(
        stream.mutex, [&]() MR_REQUIRES(stream.mutex) { return !stream.pieces.empty() || stream.result.has_value(); });
    if (stream.pieces.empty()) return std::move(*stream.result);
    const std::string piece = std::move(stream.pieces.front());
    stream.pieces.pop_front();
    if (!wanted) continue;
    lock.unlock();
    if (callback(user, piece.data(), piece.size()) != 0) {
      wanted = false;
      cancel();
    }
    lock.lock();
  }
}

Status generate(millrace_engine& handle, const millrace_request& given, millrace_text_callback callback, void* user,
                millrace_result* out) {
  const auto stream = std::make_shared<Stream>();
  MR_ASSIGN_OR_RETURN(engine::Request request, engine_request(handle.service->engine(), given, stream));
  MutexLock lock(handle.mutex);
  MR_ASSIGN_OR_RETURN(const engine::Service::Id id,
                      handle.service->submit(std::move(request), [stream](engine::Result result) {
                        const MutexLock done(stream->mutex);
                        stream->result = std::move(result);
                        stream->changed.notify_one();
                      }));
  handle.answering.insert(id);
  lock.unlock();
  const engine::Result result = deliver(*stream, callback, user, [&] { handle.service->cancel(id); });
  lock.lock();
  handle.answering.erase(id);
  lock.unlock();
  if (result.finish == engine::Finish::error) return result.status;
  if (out == nullptr) return {};
  millrace_result told{};
  told.finish = result.finish == engine::Finish::stop     ? MILLRACE_FINISH_STOP
                : result.finish == engine::Finish::length ? MILLRACE_FINISH_LENGTH
                                                          : MILLRACE_FINISH_CANCELLED;
  told.prompt_tokens = result.prompt_tokens;
  told.answer_tokens = static_cast<std::int64_t>(result.tokens.size());
  told.prompt_seconds = result.prompt_seconds;
  told.answer_seconds = result.decode_seconds;
  capi::write_struct(out, told);
  return {};
}

Status embed(millrace_engine& handle, const char* const* texts, std::size_t count, millrace_pooling pooling,
             float** vectors, std::size_t* dimensions) {
  const engine::Engine& engine = handle.service->engine();
  const std::uint64_t cancels = handle.cancels;
  engine::EmbedOptions options;
  switch (pooling) {
    case MILLRACE_POOLING_MODEL:
      break;
    case MILLRACE_POOLING_MEAN:
      options.pooling = model::Pooling::mean;
      break;
    case MILLRACE_POOLING_FIRST:
      options.pooling = model::Pooling::first;
      break;
    case MILLRACE_POOLING_LAST:
      options.pooling = model::Pooling::last;
      break;
    default:
      return error(Code::invalid_argument, "pooling: unknown value {}", static_cast<int>(pooling));
  }
  std::vector<std::vector<text::TokenId>> inputs;
  for (std::size_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) return capi::refuse_null("texts[i]");
    Expected<std::vector<text::TokenId>> ids = engine::embedding_tokens(engine, texts[i], false);
    if (!ids.ok()) return error(ids.status().code(), "text {}: {}", i, ids.status().message());
    inputs.push_back(std::move(*ids));
  }
  MR_ASSIGN_OR_RETURN(const engine::Embeddings made,
                      engine::embed(*handle.service, inputs, options, [&] { return handle.cancels != cancels; }));
  const auto width = static_cast<std::size_t>(engine.model().hyperparameters().model_dim);
  *vectors = capi::give(made.vectors, width);
  *dimensions = width;
  return {};
}

static_assert(MILLRACE_DRAFT_PLACES == engine::kMostDrafts);

/// Of all drafters together.
void tell_drafts(const engine::LoadCounters& load, millrace_counters& told) {
  for (const engine::DraftCounters& one : load.drafts) {
    told.drafts += one.drafted;
    told.drafts_right += one.right;
    for (std::size_t place = 0; place < MILLRACE_DRAFT_PLACES; ++place) {
      told.drafts_at[place] += one.drafted_at[place];
      told.drafts_right_at[place] += one.right_at[place];
    }
    told.draft_passes += one.passes;
    told.draft_seconds += one.seconds;
    told.verify_seconds += one.verify_seconds;
  }
  told.tokens_a_pass = load.tokens_a_turn();
}

Status read_counters(engine::Service& service, millrace_counters* out) {
  millrace_counters told{};
  const bool ran = service.run([&](engine::Engine& engine) {
    const residency::StoreCounters store = engine.store_counters();
    told.passes = store.passes;
    told.bytes_from_disk = store.bytes_from_disk;
    told.bytes_used = store.bytes_used;
    told.expert_hits = store.hits;
    told.expert_misses = store.misses;
    told.stall_ns = store.stall_ns;
    told.ram_granted_bytes = engine.budget().reserved_bytes();
    told.ram_cap_bytes = engine.budget().cap_bytes();
    if (const residency::Budget* vram = engine.vram_budget(); vram != nullptr) {
      told.vram_granted_bytes = vram->reserved_bytes();
      told.vram_cap_bytes = vram->cap_bytes();
    }
    told.context_tokens = engine.context_tokens();
    told.cold_expert_misses = store.experts.cold_misses;
    told.most_expert_misses = store.experts.most_misses;
    told.steady_expert_misses = store.experts.steady_misses;
    told.experts_resident = store.experts.total().resident;
    tell_drafts(engine.load(), told);
  });
  if (!ran) return error(Code::unavailable, "the engine has shut down");
  capi::write_struct(out, told);
  return {};
}

}  // namespace

extern "C" {

void millrace_options_init_sized(millrace_options* options, size_t size) {
  capi::init_struct(options, size, default_options());
}

void millrace_request_init_sized(millrace_request* request, size_t size) {
  capi::init_struct(request, size, default_request());
}

void millrace_result_init_sized(millrace_result* result, size_t size) {
  capi::init_struct(result, size, millrace_result{});
}

void millrace_counters_init_sized(millrace_counters* counters, size_t size) {
  capi::init_struct(counters, size, millrace_counters{});
}

millrace_status millrace_open(const millrace_options* options, millrace_engine** engine) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr) return capi::refuse_null("engine");
    MR_ASSIGN_OR_RETURN(const engine::EngineOptions made, engine_options(options));
    auto handle = std::make_unique<millrace_engine>();
    MR_ASSIGN_OR_RETURN(handle->service, engine::Service::start(made));
    *engine = handle.release();
    return {};
  });
}

void millrace_close(millrace_engine* engine) { delete engine; }

millrace_status millrace_plan(const millrace_options* options, millrace_form form, char** plan) {
  return capi::guarded([&]() -> Status {
    if (plan == nullptr) return capi::refuse_null("plan");
    MR_ASSIGN_OR_RETURN(const engine::EngineOptions made, engine_options(options));
    MR_ASSIGN_OR_RETURN(const engine::Planned planned, engine::plan_only(made));
    *plan = capi::give(written(planned.plan, planned.options, planned.saved.rates, form));
    return {};
  });
}

millrace_status millrace_engine_plan(millrace_engine* engine, millrace_form form, char** plan) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr || plan == nullptr) return capi::refuse_null("engine and plan");
    const engine::Engine& opened = engine->service->engine();
    *plan = capi::give(written(opened.plan(), opened.plan_options(), opened.rates(), form));
    return {};
  });
}

millrace_status millrace_tokenize(millrace_engine* engine, const char* text, size_t length, int parse_special,
                                  int32_t** ids, size_t* count) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr || ids == nullptr || count == nullptr) return capi::refuse_null("engine, ids and count");
    if (text == nullptr && length > 0) return capi::refuse_null("text");
    const auto specials = parse_special != 0 ? text::Specials::parse : text::Specials::as_text;
    const std::string_view whole = length > 0 ? std::string_view(text, length) : std::string_view();
    capi::give(engine->service->engine().tokenizer().encode(whole, specials), ids, count);
    return {};
  });
}

millrace_status millrace_detokenize(millrace_engine* engine, const int32_t* ids, size_t count, int with_special,
                                    char** text, size_t* length) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr || text == nullptr || length == nullptr) return capi::refuse_null("engine, text and length");
    if (ids == nullptr && count > 0) return capi::refuse_null("ids");
    const std::vector<text::TokenId> all(ids, ids + count);
    const std::string decoded = engine->service->engine().tokenizer().decode(all, with_special != 0);
    *text = capi::give(decoded);
    *length = decoded.size();
    return {};
  });
}

millrace_status millrace_chat_tokens(millrace_engine* engine, const char* messages_json, const char* tools_json,
                                     const char* variables_json, int32_t** ids, size_t* count) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr || ids == nullptr || count == nullptr) return capi::refuse_null("engine, ids and count");
    MR_ASSIGN_OR_RETURN(const std::vector<text::TokenId> made,
                        chat_tokens(engine->service->engine(), messages_json, tools_json, variables_json));
    capi::give(made, ids, count);
    return {};
  });
}

millrace_status millrace_generate(millrace_engine* engine, const millrace_request* request,
                                  millrace_text_callback callback, void* user, millrace_result* result) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr) return capi::refuse_null("engine");
    if (result != nullptr) {
      MR_RETURN_IF_ERROR(capi::read_struct(result, millrace_result{}, "result").status());
    }
    MR_ASSIGN_OR_RETURN(const millrace_request given, capi::read_struct(request, default_request(), "request"));
    return generate(*engine, given, callback, user, result);
  });
}

millrace_status millrace_embed(millrace_engine* engine, const char* const* texts, size_t count,
                               millrace_pooling pooling, float** vectors, size_t* dimensions) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr || vectors == nullptr || dimensions == nullptr)
      return capi::refuse_null("engine, vectors and dimensions");
    if (texts == nullptr && count > 0) return capi::refuse_null("texts");
    return embed(*engine, texts, count, pooling, vectors, dimensions);
  });
}

void millrace_cancel(millrace_engine* engine) {
  if (engine == nullptr) return;
  ++engine->cancels;
  const MutexLock lock(engine->mutex);
  for (const engine::Service::Id id : engine->answering) engine->service->cancel(id);
}

millrace_status millrace_read_counters(millrace_engine* engine, millrace_counters* counters) {
  return capi::guarded([&]() -> Status {
    if (engine == nullptr) return capi::refuse_null("engine");
    MR_RETURN_IF_ERROR(capi::read_struct(counters, millrace_counters{}, "counters").status());
    return read_counters(*engine->service, counters);
  });
}

}  // extern "C"
