// What a model makes of the pictures in a prompt: the tokens that stand for their rows, and the rows.
// Thread-safety: functions of immutable parts of the engine; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "app/generate/job.h"
#include "app/generate/pictures.h"
#include "base/work_grant.h"
#include "engine/engine.h"
#include "residency/budget.h"
#include "text/chat_template.h"

namespace millrace::generate {

/// A conversation's prompt, in which tokens below 0 are rows of pictures.
struct Prompt : text::Prompt {
  std::vector<std::vector<vision::Grid>> grids = {};     // of the views of the job's pictures, by index
  std::vector<std::size_t> inserted = {};                // those that stand in the prompt, in this order
  std::map<std::size_t, engine::PictureKey> files = {};  // of each of those, what its file is known by
};

/// Memory of the engine's own budget, for work that no budget of requests is for (`run`, `batch`). One thread's.
class EngineMemory final : public WorkGrant {
 public:
  /// `is_cancelled` (may be empty) is asked now and then.
  explicit EngineMemory(const engine::Engine& engine, std::function<bool()> is_cancelled = {});
  bool take(std::uint64_t bytes) override;
  void give_back(std::uint64_t bytes) noexcept override;
  bool cancelled() const override { return is_cancelled_ && is_cancelled_(); }

 private:
  residency::Reservation held_;
  const std::function<bool()> is_cancelled_;
};

/// How the engine's model wants pictures; null: it sees none.
const vision::Spec* spec_of(const engine::Engine& engine);

/// Each view's rows, and the marks between them, in place of the one token that the picture's markup has for them.
/// `inserted` and `grids` of the prompt are set; sets `files`. Errors: unsupported (the model's vocabulary or its
/// template has no such token, or others of them).
Status place_rows(const engine::Engine& engine, const Pictures& pictures, Prompt& prompt);

/// Has the pictures that stand in the prompt encoded, one after the other, unless they were lately: what
/// engine::Request::pictures takes. `grant` (may be null) is asked for what decoding takes, and whether the answer is
/// still wanted. Errors: invalid_argument (a picture is damaged: the message begins with its place), out_of_budget,
/// cancelled, and those of the encoder.
Expected<std::vector<engine::PlacedPicture>> see_pictures(const engine::Engine& engine, const Pictures& pictures,
                                                          const Prompt& prompt, WorkGrant* grant);

}  // namespace millrace::generate
