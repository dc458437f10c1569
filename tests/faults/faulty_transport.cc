#include "faulty_transport.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace sirtaki::faults {
namespace {

class Never final : public Pending {
 public:
  bool ready() override { return false; }
};

// Something on its way to a rank, and when it may go.
struct Held {
  Clock::time_point until;
  int tag = 0;
  Bytes bytes;
};

class FaultyTransport final : public Transport, private Holder {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const Fault& fault, int job_rank,
                  std::shared_ptr<Progress> progress)
      : inner_(std::move(inner)), fault_(fault), job_rank_(job_rank), progress_(std::move(progress)) {
    set_patience(inner_->patience());
    if (job_rank_ == fault_.rank) progress_->holders.push_back(this);
  }
  ~FaultyTransport() override {
    if (job_rank_ == fault_.rank) std::erase(progress_->holders, static_cast<Holder*>(this));
  }

  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void send(int to, Bytes bytes) override {
    let_go();
    if (silent()) return;
    std::deque<Held>& held = control_[to];
    const bool strikes = strikes_at(Traffic::kControl);
    if (silent()) return;
    if (!strikes) {
      if (overtaken_ && !held.empty()) {
        inner_->send(to, std::move(bytes));
        inner_->send(to, std::move(held.front().bytes));
        held.clear();
      } else if (!held.empty()) {
        held.push_back({held.back().until, 0, std::move(bytes)});
      } else {
        inner_->send(to, std::move(bytes));
      }
      return;
    }
    overtaken_ = fault_.kind == Kind::kOvertaken;
    // One that nothing overtakes is late.
    if (fault_.kind == Kind::kLate || overtaken_) held.push_back({Clock::now() + fault_.delay, 0, std::move(bytes)});
    if (fault_.kind == Kind::kDoubled) {
      inner_->send(to, bytes);
      inner_->send(to, std::move(bytes));
    }
    if (fault_.kind == Kind::kCutOff) inner_->send(to, cut(std::move(bytes)));
    if (fault_.kind == Kind::kDamaged) inner_->send(to, damage(std::move(bytes)));
  }

  bool receive(Message& message) override {
    let_all_go();
    return !silent() && inner_->receive(message);
  }

  bool flushed() override { return let_all_go() && inner_->flushed(); }

  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override {
    let_go();
    if (bytes.empty()) return nullptr;
    if (silent()) return nullptr;
    std::deque<Held>& held = data_[to];
    if (!strikes_at(Traffic::kData)) {
      // What follows on the same way with another tag may pass it.
      if (!held.empty() && held.back().tag == tag) {
        held.push_back({held.back().until, tag, {bytes.begin(), bytes.end()}});
        return nullptr;
      }
      PendingPtr sent = inner_->send_data(to, tag, bytes);
      if (overtaken_) pass_on(to, held);
      return sent;
    }
    overtaken_ = fault_.kind == Kind::kOvertaken;
    if (fault_.kind == Kind::kLate || overtaken_) {
      held.push_back({Clock::now() + fault_.delay, tag, {bytes.begin(), bytes.end()}});
    } else if (fault_.kind == Kind::kCutOff && bytes.size() > 1) {
      return inner_->send_data(to, tag, bytes.first(1 + fault_.seed % (bytes.size() - 1)));
    }
    return nullptr;
  }

  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override {
    let_go();
    if (bytes.empty()) return nullptr;
    if (silent()) return std::make_unique<Never>();
    return std::make_unique<Receiving>(*this, inner_->receive_data(from, tag, bytes));
  }

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override {
    inner_->set_patience(patience());
    while (!flushed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // nobody lets go while this one waits
    auto part = inner_->split(ranks);
    return part == nullptr ? nullptr : make_faulty(std::move(part), fault_, job_rank_, progress_);
  }

  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override {
    inner_->set_patience(patience());
    return make_faulty(inner_->split_members(ranks), fault_, job_rank_, progress_);
  }

  void abort_job(int exit_code) override { inner_->abort_job(exit_code); }

 private:
  // While a rank waits for data it lets go what it has held back.
  class Receiving final : public Pending {
   public:
    Receiving(FaultyTransport& transport, PendingPtr inner) : transport_(transport), inner_(std::move(inner)) {}
    bool ready() override {
      transport_.let_go();
      return !transport_.silent() && inner_->ready();
    }

   private:
    FaultyTransport& transport_;
    PendingPtr inner_;
  };

  bool silent() const { return job_rank_ == fault_.rank && progress_->silent; }

  // Counts a message that this rank sends. Is it the one?
  bool strikes_at(Traffic traffic) {
    if (fault_.rank != job_rank_ || fault_.kind == Kind::kNone || fault_.kind == Kind::kThrows) return false;
    const std::uint64_t number = (traffic == Traffic::kControl ? progress_->control : progress_->data)++;
    if (traffic != fault_.traffic || number != fault_.number) return false;
    progress_->struck = true;
    progress_->struck_leaving = progress_->leaving.load();
    if (fault_.kind == Kind::kSilent) progress_->silent = true;
    return true;
  }

  // An engine that waits asks one of its transports only whether all has left.
  bool let_all_go() {
    bool nothing = true;
    if (job_rank_ != fault_.rank) return nothing;
    for (Holder* holder : progress_->holders) nothing &= holder->let_go();
    return nothing;
  }

  bool let_go() override {
    if (!progress_->struck) return true;
    for (auto& [to, held] : control_) {
      while (!held.empty() && held.front().until <= Clock::now()) {
        inner_->send(to, std::move(held.front().bytes));
        held.pop_front();
      }
    }
    for (auto& [to, held] : data_) {
      if (!held.empty() && held.front().until <= Clock::now()) pass_on(to, held);
    }
    const auto nothing = [](const auto& entry) { return entry.second.empty(); };
    return std::ranges::all_of(control_, nothing) && std::ranges::all_of(data_, nothing);
  }

  void pass_on(int to, std::deque<Held>& held) {
    for (Held& each : std::exchange(held, {})) {
      static_cast<void>(inner_->send_data(to, each.tag, each.bytes));  // a loopback's is over at once
    }
  }

  Bytes cut(Bytes bytes) const {
    bytes.resize(bytes.empty() ? 0 : fault_.seed % bytes.size());
    return bytes;
  }

  Bytes damage(Bytes bytes) const {
    std::mt19937 random(fault_.seed);
    for (std::size_t i = 0; i < 1 + fault_.seed % 3 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    }
    return bytes;
  }

  std::unique_ptr<Transport> inner_;
  Fault fault_;
  int job_rank_;
  std::shared_ptr<Progress> progress_;
  bool overtaken_ = false;
  std::map<int, std::deque<Held>> control_;  // by receiver
  std::map<int, std::deque<Held>> data_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, const Fault& fault, int job_rank,
                                       std::shared_ptr<Progress> progress) {
  return std::make_unique<FaultyTransport>(std::move(inner), fault, job_rank, std::move(progress));
}

}  // namespace sirtaki::faults
