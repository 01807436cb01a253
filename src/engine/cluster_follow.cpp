// The other ranks' half of engine/cluster.h.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/cluster.h"
#include "engine/cluster_terms.h"
#include "exec/follower.h"
#include "link/inbox.h"

namespace millrace::engine {
namespace {

using link::MessageKind;
using link::Reader;

class FollowingRank {
 public:
  FollowingRank(link::Link& link, const Expected<EngineOptions>& options) : link_(link), inbox_(link) {
    wrong_ = options.ok() ? check_cluster_options(*options) : options.status();
    if (options.ok()) given_ = *options;
    choose_gpu(link, given_);
    leave_out_what_is_off(given_);
    given_.kv.share_prefixes = false;  // rank 0 says what is kept
    given_.speculate = {};
    given_.part.ranks = link.size();
    options_ = given_;
  }

  /// Until rank 0 ends. Errors: of the link.
  Status run() {
    std::vector<std::byte> message;
    for (;;) {
      MR_RETURN_IF_ERROR(inbox_.next(message, [this] { pump(); }));
      pump();
      Reader reader(message);
      switch (reader.kind()) {
        case MessageKind::open:
          MR_RETURN_IF_ERROR(answer(open(reader)));
          break;
        case MessageKind::plan:
          MR_RETURN_IF_ERROR(answer(plan(reader)));
          break;
        case MessageKind::load:
          MR_RETURN_IF_ERROR(answer(load(reader)));
          break;
        case MessageKind::pass:
          MR_RETURN_IF_ERROR(take(message));
          break;
        case MessageKind::recall:
          MR_RETURN_IF_ERROR(follower_ ? follower_->recall(message) : say_nothing_recalled());
          break;
        case MessageKind::keep:
          if (follower_) MR_RETURN_IF_ERROR(follower_->keep(message));
          break;
        case MessageKind::cancel:
          if (follower_) follower_->cancel(reader.number<std::uint64_t>());
          break;
        case MessageKind::close:
          close();
          std::vector<std::byte>().swap(message);  // as long as passes were
          break;
        case MessageKind::end:
          return {};
        case MessageKind::reply:
        case MessageKind::result:
        case MessageKind::measure:
        case MessageKind::echo:
        case MessageKind::measured:
        case MessageKind::recalled:
          log::warn("{}: a message that is not for this rank", link_.name(link_.rank()));
      }
    }
  }

 private:
  Status answer(const Expected<ClusterReply>& reply) {
    ClusterReply said;
    if (reply.ok()) said = *reply;
    said.status = reply.status();
    if (!said.status.ok()) close();
    std::vector<std::byte> message;
    said.write(message);
    return link_.send(0, message);
  }

  Expected<ClusterReply> open(Reader& reader);
  Expected<ClusterReply> plan(Reader& reader);
  Expected<ClusterReply> load(Reader& reader);

  Status take(std::span<const std::byte> message) {
    if (follower_) return follower_->take(message);
    std::vector<std::byte> failure;
    exec::write_failure(Reader(message).number<std::uint64_t>(), error(Code::internal, "no model is open here"),
                        failure);
    return link_.send(0, failure);
  }

  Status say_nothing_recalled() {
    std::vector<std::byte> message;
    exec::write_recalled({}, message);
    return link_.send(0, message);
  }

  void pump() {
    if (parts_ && parts_->prompts != nullptr) parts_->prompts->pump();
  }

  void close() {
    follower_.reset();
    parts_.reset();
    options_ = given_;
  }

  link::Link& link_;
  link::Inbox inbox_;
  EngineOptions given_, options_;  // of the command line; of the model that is open
  Status wrong_;                   // with the command line
  std::optional<Parts> parts_;
  std::optional<exec::Follower> follower_;
};

Expected<ClusterReply> FollowingRank::open(Reader& reader) {
  close();
  MR_RETURN_IF_ERROR(wrong_);
  if (reader.number<std::uint32_t>() != link::kProtocol) return link::other_version();
  const std::string identity = reader.text();
  const auto terms = reader.array<ClusterTerms>();
  MR_RETURN_IF_ERROR(reader.status());
  if (terms.size() != 1) return error(Code::corrupt, "rank 0 named no terms");
  terms[0].apply(options_);
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options_));
  MR_ASSIGN_OR_RETURN(const std::string own, identity_of(options_, file));
  if (own != identity)
    return error(Code::invalid_argument, "{} is another file there than on rank 0; copy it anew", options_.model.path);
  ClusterReply reply;
  reply.room_bytes = room_for_layers(options_);
  return reply;
}

Expected<ClusterReply> FollowingRank::plan(Reader& reader) {
  const auto stage = reader.array<model::Stage>();
  MR_RETURN_IF_ERROR(reader.status());
  if (stage.size() != 1) return error(Code::corrupt, "rank 0 named no layers");
  options_.part.stage = stage[0];
  ClusterReply reply;
  MR_ASSIGN_OR_RETURN(reply.limits, find_limits(options_));
  return reply;
}

Expected<ClusterReply> FollowingRank::load(Reader& reader) {
  const auto terms = reader.array<ClusterTerms>();
  MR_RETURN_IF_ERROR(reader.status());
  if (terms.size() != 1) return error(Code::corrupt, "rank 0 named no limits");
  terms[0].apply(options_);
  MR_ASSIGN_OR_RETURN(parts_, assemble(options_));
  const model::Hyperparameters& hp = parts_->model->hyperparameters();
  follower_.emplace(exec::FollowerParts{link_,
                                        inbox_,
                                        *parts_->executor,
                                        parts_->kv_pool,
                                        *parts_->budget,
                                        [this] { return parts_->backend->health(); },
                                        {hp.model_dim, hp.vocab},
                                        parts_->prompts.get()});
  MR_RETURN_IF_ERROR(follower_->prepare(pass_limits(parts_->limits)));
  log::info("{}: layers {} to {} are ready", link_.name(link_.rank()), options_.part.stage.first,
            options_.part.stage.last - 1);
  ClusterReply reply;
  reply.numerics = parts_->executor->numerics();
  reply.at_home = all_at_home(*parts_);
  reply.keeps_prompts = parts_->prompts != nullptr;
  reply.limits = parts_->limits;
  return reply;
}

}  // namespace

Status follow(link::Link& link, const Expected<EngineOptions>& options) { return FollowingRank(link, options).run(); }

}  // namespace millrace::engine
