// Memory that a task requests while it runs (rendering a template, compiling a schema, reading a file's header), so
// that the caller can charge a budget for it and cancel the task. Thread-safety: only the thread that runs the task
// uses a grant.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace millrace {

class WorkGrant {
 public:
  virtual ~WorkGrant() = default;
  /// Called before memory is allocated. False: no memory is left, and the task must end with an error.
  virtual bool take(std::uint64_t bytes) = 0;
  virtual void give_back(std::uint64_t bytes) noexcept = 0;
  /// Polled. True: the result is no longer needed, and the task must end with an error.
  virtual bool cancelled() const { return false; }
};

/// Bytes charged to a grant for the lifetime of this object; a result keeps one beside the memory that it covers.
/// Move-only.
class GrantLease {
 public:
  GrantLease() = default;
  GrantLease(GrantLease&& other) noexcept
      : grant_(std::exchange(other.grant_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  GrantLease& operator=(GrantLease&& other) noexcept {
    std::swap(grant_, other.grant_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~GrantLease() {
    if (grant_ != nullptr && bytes_ > 0) grant_->give_back(bytes_);
  }

  /// Charges more bytes to `grant` (may be null: no limit). `grant` outlives this object and is the same in every call.
  /// False: the grant is exhausted, and nothing has changed.
  [[nodiscard]] bool take(WorkGrant* grant, std::uint64_t bytes) {
    if (grant != nullptr && !grant->take(bytes)) return false;
    grant_ = grant;
    bytes_ += bytes;
    return true;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  WorkGrant* grant_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Counts bytes in use against a cap and against a grant, which it charges in slices. The destructor returns the last
/// slice.
class GrantedBytes {
 public:
  static constexpr std::uint64_t kSlice = 32u << 10;

  /// `grant` may be null, and outlives this object.
  GrantedBytes(std::uint64_t most, WorkGrant* grant) : most_(most), grant_(grant) {}
  ~GrantedBytes() {
    if (grant_ != nullptr && granted_ > 0) grant_->give_back(granted_);
  }
  GrantedBytes(const GrantedBytes&) = delete;
  GrantedBytes& operator=(const GrantedBytes&) = delete;

  /// False: the cap or the grant is exceeded, and nothing has changed.
  [[nodiscard]] bool grow(std::uint64_t bytes) {
    if (bytes > most_ - used_) return false;
    if (used_ + bytes > granted_) {
      const std::uint64_t wanted = std::max(used_ + bytes - granted_, kSlice);
      if (grant_ != nullptr && !grant_->take(wanted)) return false;
      granted_ += wanted;
    }
    used_ += bytes;
    return true;
  }
  /// REQUIRES: bytes <= used().
  void shrink(std::uint64_t bytes) noexcept {
    used_ -= bytes;
    if (granted_ - used_ < 4 * kSlice) return;
    const std::uint64_t spare = granted_ - used_ - kSlice;
    if (grant_ != nullptr) grant_->give_back(spare);
    granted_ -= spare;
  }
  std::uint64_t used() const { return used_; }
  std::uint64_t most() const { return most_; }
  bool cancelled() const { return grant_ != nullptr && grant_->cancelled(); }

 private:
  const std::uint64_t most_;
  WorkGrant* const grant_;
  std::uint64_t used_ = 0, granted_ = 0;  // used_ <= granted_; used_ <= most_
};

}  // namespace millrace
