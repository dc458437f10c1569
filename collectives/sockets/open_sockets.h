// The sockets of a rank, for a child that it forks: the child closes them, or the other ranks could not notice the end
// of the rank while the child lives.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace sirtaki {

class OpenSockets {
 public:
  void add(int socket) { change(socket, true); }
  void remove(int socket) { change(socket, false); }

  // In the child, where other threads of the parent may have been anywhere.
  void close_all() const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t word = words_[i].load();
      for (std::size_t bit = 0; word >> bit > 0 && bit < kBits; ++bit) {
        if ((word >> bit & 1) != 0) ::close(static_cast<int>(i * kBits + bit));
      }
    }
  }

 private:
  static constexpr std::size_t kBits = 64;

  void change(int socket, bool open) {
    const auto index = static_cast<std::size_t>(socket) / kBits;
    const std::uint64_t bit = std::uint64_t{1} << static_cast<std::size_t>(socket) % kBits;
    if (socket < 0 || index >= words_.size()) return;
    open ? words_[index].fetch_or(bit) : words_[index].fetch_and(~bit);
  }

  std::array<std::atomic<std::uint64_t>, 1024> words_{};  // a bit for each descriptor; later ones are left out
};

}  // namespace sirtaki
