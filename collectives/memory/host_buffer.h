// Host memory that the core allocates: for results whose size depends on all ranks, and for temporary data.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "memory/large_blocks.h"

namespace sirtaki {

class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t size) : size_(size) {
    if (size >= kLargeBlock) {
      const LargeBlock block = take_large_block(size);
      data_ = std::unique_ptr<std::byte, Free>(block.data, Free(block.size));
      return;
    }
    // A size of zero also gets an address, so that "allocated" and "empty" stay different.
    const std::size_t rounded = (size / kAlignment + 1) * kAlignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool allocated() const { return data_ != nullptr; }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    std::size_t block;  // zero: from malloc()

    Free() : block(0) {}
    explicit Free(std::size_t large) : block(large) {}
    void operator()(std::byte* data) const {
      if (block > 0) {
        give_back_large_block({data, block});
      } else {
        std::free(data);
      }
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace sirtaki
