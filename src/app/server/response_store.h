// Responses that clients may go on from (`previous_response_id`), read again or delete. They lie in memory, under what
// requests may hold together; the longest unused go first, and nothing outlives the server.
// Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "residency/budget.h"

namespace millrace::server {

/// One response. What came before it lives as long as it does.
struct KeptResponse {
  std::string owner;                             // of whose key it is
  std::shared_ptr<const KeptResponse> previous;  // null: a conversation begins here
  std::string turn;                              // {"input": [items], "output": [items]}, as text
  std::string body;                              // the response, as text
  std::vector<std::string> items;                // ids of its output's items
  residency::Reservation memory;

  KeptResponse() = default;
  ~KeptResponse();  // frees a long conversation without recursion
  KeptResponse(const KeptResponse&) = delete;
  KeptResponse& operator=(const KeptResponse&) = delete;
};

class ResponseStore {
 public:
  static constexpr const char* kTag = "kept responses";

  /// Takes a quarter of the budget at most, and gives way to whoever else asks it for memory. The budget outlives this.
  explicit ResponseStore(residency::Budget& budget);
  ~ResponseStore();

  /// False: it is larger than all that may be kept.
  bool keep(const std::string& id, std::string owner, std::shared_ptr<const KeptResponse> previous, std::string turn,
            std::string body, std::vector<std::string> items = {});
  /// Null: there is none of that name, or it is somebody else's.
  std::shared_ptr<const KeptResponse> find(const std::string& id, const std::string& owner);
  /// The one whose output has an item of this id. Null likewise.
  std::shared_ptr<const KeptResponse> find_item(const std::string& item, const std::string& owner);
  /// False likewise. Those that go on from it keep what they need.
  bool remove(const std::string& id, const std::string& owner);

 private:
  struct Entry {
    std::shared_ptr<const KeptResponse> kept;
    std::list<std::string>::iterator use;
  };
  std::uint64_t give_way(std::uint64_t bytes);
  std::shared_ptr<const KeptResponse> take(std::map<std::string, Entry>::iterator entry) MR_REQUIRES(mutex_);

  residency::Budget& budget_;
  Mutex mutex_;
  std::map<std::string, Entry> entries_ MR_GUARDED_BY(mutex_);
  std::list<std::string> uses_ MR_GUARDED_BY(mutex_);               // ids, the longest unused first
  std::map<std::string, std::string> items_ MR_GUARDED_BY(mutex_);  // responses of entries_, by the ids of their items
};

}  // namespace millrace::server
