#include "fabric/fabric.h"

#include <numeric>
#include <string>

#include "host/shm_transport.h"

namespace sirtaki {

void Fabric::share_memory(std::shared_ptr<HostBells> bells) {
  std::vector<int> all(static_cast<std::size_t>(transport_->size()));
  std::iota(all.begin(), all.end(), 0);
  share_memory(std::move(bells), std::move(all));
}

void Fabric::share_memory(std::shared_ptr<HostBells> bells, std::vector<int> job_ranks) {
  std::string why;  // not shown: the shared-memory plane fails for the same reason, and reports it
  transport_ = make_shm_transport(std::move(transport_), bells, job_ranks, why);
  if (!why.empty()) return;
  bells_ = std::move(bells);
  job_ranks_ = std::move(job_ranks);
}

std::unique_ptr<Fabric> Fabric::split(const std::vector<int>& ranks, Callers callers) {
  auto part = split_network(ranks, callers);
  if (part == nullptr || bells_ == nullptr || ranks.size() == 1) return part;
  std::vector<int> job_ranks;
  for (const int rank : ranks) job_ranks.push_back(job_ranks_[static_cast<std::size_t>(rank)]);
  part->share_memory(bells_, std::move(job_ranks));
  return part;
}

}  // namespace sirtaki
