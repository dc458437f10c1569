// The submissions of one group for which this rank has voted and on which the ranks have not agreed yet.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "queue/submission.h"

namespace sirtaki {

class InFlight {
 public:
  void add(Submission submission) {
    if (submission.request.verb == Verb::kJoin) {
      joins_.push_back(std::move(submission));
      return;
    }
    Key key{submission.request.name, submission.request.sequence};
    calls_.emplace(std::move(key), std::move(submission));
  }
  // Empty if this rank has not voted for such a request.
  std::optional<Submission> take(const std::string& name, std::uint64_t sequence) {
    auto node = calls_.extract(Key{name, sequence});
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }
  // Several threads of the program may join.
  std::vector<Submission> take_joins() { return std::exchange(joins_, {}); }
  bool has_joins() const { return !joins_.empty(); }
  bool empty() const { return calls_.empty() && joins_.empty(); }

  std::vector<Submission> take_all() {
    std::vector<Submission> all;
    for (auto& [key, submission] : std::exchange(calls_, {})) all.push_back(std::move(submission));
    for (Submission& join : take_joins()) all.push_back(std::move(join));
    return all;
  }
  template <class Call>
  void for_each(Call call) const {
    for (const auto& [key, submission] : calls_) call(submission);
    for (const Submission& join : joins_) call(join);
  }

 private:
  using Key = std::pair<std::string, std::uint64_t>;

  std::map<Key, Submission> calls_;
  std::vector<Submission> joins_;
};

}  // namespace sirtaki
