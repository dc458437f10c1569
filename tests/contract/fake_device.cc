#include "fake_device.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "math/kernels.h"

namespace sirtaki::contract {
namespace {

thread_local FakeDevice* current_device = nullptr;

class Inside {
 public:
  explicit Inside(FakeDevice& device) : before_(std::exchange(current_device, &device)) {}
  ~Inside() { current_device = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  FakeDevice* before_;
};

class Point {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    time_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  std::chrono::steady_clock::time_point time() {
    const std::lock_guard lock(mutex_);
    return time_;
  }
  bool reached() {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  void block() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point time_;
};

class FakeStream {
 public:
  FakeStream() : thread_([this] { run(); }) {}
  ~FakeStream() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void call(std::function<void()> body) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(body));
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return over_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> body = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      body();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool over_ = false;
  std::thread thread_;
};

FakeStream& fake(Stream stream) { return *static_cast<FakeStream*>(stream); }

// Long enough for the host to overtake, wherever it does not wait.
void linger() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

class FakeEvent final : public Event {
 public:
  FakeEvent(Stream stream, std::uint64_t number) : stream_(stream), number_(number) {
    fake(stream).call([point = point_] { point->reach(); });
  }
  std::chrono::steady_clock::time_point time() const { return point_->time(); }
  Stream stream() const override { return stream_; }
  std::uint64_t number() const override { return number_; }
  bool reached() override { return point_->reached(); }
  void block_stream(Stream stream) override {
    fake(stream).call([point = point_] { point->block(); });
  }
  void block() override { point_->block(); }

 private:
  Stream stream_;
  std::uint64_t number_;
  std::shared_ptr<Point> point_ = std::make_shared<Point>();
};

class Fake final : public FakeDevice {
 public:
  explicit Fake(FakeHardware hardware) : hardware_(std::move(hardware)) {}

  int number() const override { return hardware_.number; }
  const std::string& identity() const override { return hardware_.identity; }
  void with_context(const std::function<void()>& calls) override {
    check();
    const Inside inside(*this);
    calls();
  }
  Stream make_stream() override { return new FakeStream; }
  void destroy(Stream stream) override { delete static_cast<FakeStream*>(stream); }
  EventPtr record(Stream stream) override {
    check();
    return std::make_shared<FakeEvent>(stream, ++recorded_);
  }
  EventPtr record_timed(Stream stream) override { return record(stream); }
  std::chrono::nanoseconds elapsed(const Event& from, const Event& to) override {
    check();
    return static_cast<const FakeEvent&>(to).time() - static_cast<const FakeEvent&>(from).time();
  }
  bool is_capturing(Stream) override { return false; }

  DeviceMemory allocate(std::size_t bytes) override {
    if (bytes > hardware_.memory) return {};
    auto* memory = static_cast<std::byte*>(std::malloc(bytes));
    std::memset(memory, 0x7f, bytes);  // what nobody has written is no zero
    return {memory, bytes, [](std::byte* data) { std::free(data); }};
  }
  DeviceMemory allocate_pinned(std::size_t bytes) override { return allocate(bytes); }
  std::string free_memory() override { return "0 of 0 MiB are free"; }

  void copy(void* out, const void* in, std::size_t bytes, Stream stream) override {
    call(stream, [=] { std::memcpy(out, in, bytes); });
  }
  const std::string& lacks_kernels() override { return hardware_.lacks_kernels; }
  void convert(DType to, DType from, std::span<const Part> parts, Scale scale, Stream stream) override {
    call(stream, [=, copied = std::vector<Part>(parts.begin(), parts.end())] {
      for (const Part& part : copied) sirtaki::convert(to, part.out, from, part.in, part.count, scale);
    });
  }
  void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count, Stream stream) override {
    call(stream, [=] { sirtaki::fill_identity(dtype, op, out, count); });
  }
  void call(Stream stream, std::function<void()> body) override {
    fake(stream).call([body = std::move(body)] {
      linger();
      body();
    });
  }
  void fail() override { failed_ = true; }

 private:
  void check() const {
    if (failed_) throw Error(ErrorKind::kAborted, "the fake GPU has failed");
  }

  FakeHardware hardware_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> recorded_{0};
};

}  // namespace

FakeDevice* FakeDevice::current() { return current_device; }

std::unique_ptr<FakeDevice> make_fake_device(FakeHardware hardware) {
  return std::make_unique<Fake>(std::move(hardware));
}

}  // namespace sirtaki::contract
