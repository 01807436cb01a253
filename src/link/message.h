// What messages are made of: numbers as this machine has them, texts, rows of floats. All ranks know the same messages
// (kProtocol) and add in the same order (exec::Executor::numerics()), which is checked when a model is opened. A
// message begins with what it is about. Thread-safety: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace millrace::link {

/// Changes when a message does.
constexpr std::uint32_t kProtocol = 9;

/// What a rank, or rank 0 of it, says where the other speaks another protocol.
inline Status other_version() {
  return error(Code::unsupported, "it runs another version of millrace than rank 0; install the same one");
}

enum class MessageKind : std::uint32_t {
  open = 1,  // rank 0 opens a model; each answers with reply
  plan,      // the layers that a rank is to plan for; answered with reply
  load,      // the limits that it is to load them with; answered with reply
  reply,     // to one of the above
  pass,      // from each rank to the next (exec/stage_message.h)
  cancel,    // rank 0 gives a pass up, and those before it
  result,    // of a pass, to rank 0
  close,     // rank 0 is done with the model
  end,       // rank 0 ends
  measure,   // the way to a rank, or whatever all measure (link/measure.h)
  echo,      // is answered with the same
  measured,  // what was found
  recall,    // from each rank to the next: KV of a prompt that all load from their disks (exec/stage_message.h)
  recalled,  // to rank 0: what all of them have
  keep,      // from each rank to the next: a prompt whose KV all write to their disks
};

/// Puts a message together. Parts begin at multiples of 8 bytes.
class Writer {
 public:
  /// What `message` held is gone; its memory is used again.
  Writer(std::vector<std::byte>& message, MessageKind kind) : message_(message) {
    message_.clear();
    number(kind);
  }
  template <typename T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    std::memcpy(room(sizeof(value)), &value, sizeof(value));
  }
  void text(const std::string& text) {
    number(text.size());
    if (!text.empty()) std::memcpy(room(text.size()), text.data(), text.size());
  }
  template <typename T>
  void array(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(values.size());
    if (!values.empty()) std::memcpy(room(values.size_bytes()), values.data(), values.size_bytes());
  }
  /// Room for so many floats, to be filled before the next part is added.
  float* floats(std::size_t count) {
    number(count);
    return reinterpret_cast<float*>(room(count * sizeof(float)));
  }

 private:
  std::byte* room(std::size_t bytes) {
    const std::size_t at = message_.size();
    message_.resize(at + (bytes + 7) / 8 * 8);
    return message_.data() + at;
  }

  std::vector<std::byte>& message_;
};

/// Takes a message apart, which outlives what is read of it as spans. What is not there reads as zero or empty, and
/// status() says so once.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : message_(message) { kind_ = number<MessageKind>(); }

  MessageKind kind() const { return kind_; }
  template <typename T>
  T number() {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    T value{};
    if (const std::byte* from = take(sizeof(T))) std::memcpy(&value, from, sizeof(T));
    return value;
  }
  std::string text() {
    const auto size = number<std::size_t>();
    const std::byte* from = take(size);
    return from == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(from), size);
  }
  template <typename T>
  std::span<const T> array() {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 8);
    const auto count = number<std::size_t>();
    const std::byte* from = count > message_.size() ? take(~std::size_t{0}) : take(count * sizeof(T));
    if (from == nullptr) return {};
    return {reinterpret_cast<const T*>(from), count};
  }
  /// Errors: corrupt.
  Status status() const { return short_ ? error(Code::corrupt, "a message between ranks is cut off") : Status(); }

 private:
  const std::byte* take(std::size_t bytes) {
    const std::size_t left = message_.size() - at_;
    if (short_ || bytes > left) {
      short_ = true;
      return nullptr;
    }
    const std::byte* const from = message_.data() + at_;
    at_ += std::min(left, (bytes + 7) / 8 * 8);
    return from;
  }

  std::span<const std::byte> message_;
  std::size_t at_ = 0;
  bool short_ = false;
  MessageKind kind_{};
};

}  // namespace millrace::link
