#include "sleep/arrival_watch.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace sirtaki {
namespace {

void set(const Descriptor& epoll, int operation, int descriptor, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll.get(), operation, descriptor, &event) != 0) {
    throw Error(ErrorKind::kAborted, std::string("cannot wait for the network: ") + std::strerror(errno));
  }
}

}  // namespace

ArrivalWatch::ArrivalWatch(int epoll, Doorbell& doorbell)
    : epoll_(epoll), doorbell_(doorbell), gate_(epoll_create1(EPOLL_CLOEXEC)), end_(eventfd(0, EFD_CLOEXEC)) {
  set(gate_, EPOLL_CTL_ADD, end_.get(), EPOLLIN);
  set(gate_, EPOLL_CTL_ADD, epoll_, 0);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals must reach the program's threads
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ArrivalWatch::~ArrivalWatch() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

void ArrivalWatch::arm() { set(gate_, EPOLL_CTL_MOD, epoll_, EPOLLIN | EPOLLONESHOT); }

void ArrivalWatch::run() {
  pthread_setname_np(pthread_self(), "sirtaki-net");
  while (true) {
    epoll_event event{};
    if (epoll_wait(gate_.get(), &event, 1, -1) <= 0) continue;
    if (event.data.fd == end_.get()) return;
    doorbell_.ring(true);
  }
}

}  // namespace sirtaki
