// How Millrace reports errors: Status and Expected<T>, a few codes, and one line of text for the user.
// Asserts (MR_ASSERT) catch our own bugs only; no user input or model file may ever trip one.
// Thread-safety: values, no shared state.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace millrace {

enum class Code : std::uint8_t {
  ok,
  invalid_argument,  // the caller or the user asked for something that is not valid
  not_found,         // a file, tensor or key is missing
  corrupt,           // bytes that cannot be what they claim to be
  unsupported,       // well-formed, but this version cannot do it (the message names the feature)
  io_error,          // the disk or the kernel failed a read or write
  out_of_budget,     // does not fit; the message names the smallest budget that would
  cancelled,
  unavailable,  // busy now; the same may work later
  internal,     // our own bug, detected without a crash
};

/// "corrupt", "io_error" and so on.
std::string_view code_name(Code code);

/// An outcome without a value. The message is one line: what happened, then what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same failure with "context: " put before the message; an ok status stays ok.
  Status with_context(std::string_view context) const {
    return ok() ? *this : Status(code_, fmt::format("{}: {}", context, message_));
  }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

/// A failure with a formatted message: `return error(Code::corrupt, "tensor {} ends after the file", name);`
template <typename... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

/// A value, or the Status that explains why there is none. REQUIRES: ok() before value().
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit by design
  Expected(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

[[noreturn]] void assert_failed(const char* file, int line, const char* what);

}  // namespace millrace

#define MR_ASSERT(cond) ((cond) ? (void)0 : ::millrace::assert_failed(__FILE__, __LINE__, #cond))

#define MR_CONCAT_(a, b) a##b
#define MR_CONCAT(a, b) MR_CONCAT_(a, b)

/// Returns the Status of `expr` to the caller unless it is ok.
#define MR_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                               \
    if (::millrace::Status mr_status_ = (expr); !mr_status_.ok()) return mr_status_; \
  } while (0)

/// `MR_ASSIGN_OR_RETURN(auto x, f());` : x gets the value, or the caller gets the Status.
#define MR_ASSIGN_OR_RETURN(lhs, expr) MR_ASSIGN_OR_RETURN_(MR_CONCAT(mr_expected_, __LINE__), lhs, expr)
#define MR_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.status();        \
  lhs = std::move(tmp).value()
