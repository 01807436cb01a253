// Short names of well-known models, such as llama3.2:3b, and the repositories of the hub that have them. A file
// `aliases` in the store's folder adds others or replaces these: a line each, `NAME USER/REPO:QUANT`, # for comments.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace millrace::store {

/// What `name` stands for, "user/repo" or "user/repo:QUANT"; empty: it is no alias. `root`: the store's folder.
std::string alias_of(std::string_view name, const std::string& root);
/// Whether `name` can be a model of a hub: an alias, or with a user in front.
bool names_hub_model(std::string_view name, const std::string& root);

}  // namespace millrace::store
