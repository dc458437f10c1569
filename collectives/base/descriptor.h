// Owns a descriptor of the kernel: a file, a socket, an epoll or an eventfd.
#pragma once

#include <unistd.h>

#include <utility>

namespace sirtaki {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return number_; }  // -1: none
  int release() { return std::exchange(number_, -1); }
  void close() {
    if (const int number = release(); number >= 0) ::close(number);
  }

 private:
  int number_;
};

}  // namespace sirtaki
