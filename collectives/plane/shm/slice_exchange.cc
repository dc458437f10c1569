#include "plane/shm/slice_exchange.h"

#include <utility>

namespace sirtaki {

class SliceExchange::Wait final : public Pending {
 public:
  Wait(SliceExchange& rails, const Rail* rail, PendingPtr other)
      : rails_(rails), rail_(rail), other_(std::move(other)) {}

  bool ready() override {
    if (rails_.advance()) note_progress();
    return (rail_ == nullptr || !rail_->running) && (other_ == nullptr || other_->ready());
  }

 private:
  SliceExchange& rails_;
  const Rail* rail_;
  PendingPtr other_;
};

SliceExchange::SliceExchange(std::vector<Carrier> carriers, std::size_t room) {
  for (auto& carrier : carriers) {
    rails_.push_back(std::make_unique<Rail>(Rail{.carrier = std::move(carrier), .memory = HostBuffer(room)}));
  }
}

SliceExchange::~SliceExchange() {
  for (auto& rail : rails_) {
    if (rail->running) static_cast<void>(rail.release());  // never freed: what carries it may still use its memory
  }
}

void SliceExchange::start(std::size_t piece, DType dtype, ReduceOp op, std::int64_t count) {
  if (count == 0) return;
  Rail& rail = *rails_[piece % kCount];
  rail.segment = {rail.memory.data(), rail.memory.data(), count};
  rail.task = rail.carrier.plane->allreduce({.dtype = dtype, .op = op}, {&rail.segment, 1});
  rail.running = true;
  advance();
}

PendingPtr SliceExchange::arrival(std::size_t piece) {
  if (rails_.empty()) return nullptr;
  return std::make_unique<Wait>(*this, rails_[piece % kCount].get(), nullptr);
}

PendingPtr SliceExchange::alongside(PendingPtr other) {
  if (other == nullptr) {
    advance();
    return nullptr;
  }
  return std::make_unique<Wait>(*this, nullptr, std::move(other));
}

// True if something came forward.
bool SliceExchange::advance() {
  bool moved = false;
  for (auto& rail : rails_) {
    if (!rail->running) continue;
    rail->running = !rail->task.advance();
    moved |= !rail->running || rail->task.took_progress();
  }
  return moved;
}

}  // namespace sirtaki
