#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace posenc::attention_ops {

/// Memory of a thread that stays for later calls, aligned to cache lines. What it holds is gone with the next get().
class ThreadMemory {
 public:
  template <typename T>
  T* get(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(new (kAlignment) std::byte[bytes]);
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* p) const { ::operator delete[](p, kAlignment); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
  size_t bytes_ = 0;
};

}  // namespace posenc::attention_ops
