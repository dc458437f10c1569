// The network of one group: makes the transport for its messages and the data planes for its tensors, and can end the
// job. Each kind of network (MPI, threads of one process) is one class that derives from Fabric. One thread at a time
// calls it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "host/host_bells.h"
#include "plane/plane_choice.h"
#include "sleep/doorbell.h"
#include "transport/transport.h"

namespace sirtaki {

// Which ranks call split().
enum class Callers { kAllRanks, kMembers };

class Fabric {
 public:
  virtual ~Fabric() = default;

  // The same object until share_memory(); the planes use it, so the fabric outlives them.
  Transport& transport() const { return *transport_; }

  // For the fabric of the whole job, if all ranks share a host: sends control messages through shared memory from now
  // on, also in fabrics that are split off. Collective; blocks. If memory is missing, nothing changes on any rank.
  void share_memory(std::shared_ptr<HostBells> bells);

  // In order of preference, the same order on all ranks. Each call makes new planes. `hosts`: a number for each rank,
  // equal where ranks share a host. Collective; blocks.
  virtual DataPlanes make_planes(const std::vector<int>& hosts) = 0;

  // A fabric for some of the ranks, in the order given; null on the other ranks. Collective over all ranks, or over the
  // listed ones alone; blocks.
  std::unique_ptr<Fabric> split(const std::vector<int>& ranks, Callers callers = Callers::kAllRanks);

  // For the fabric of the whole job: from now on all that arrives while the engine sleeps rings its doorbell, if the
  // network can do that. The doorbell outlives this fabric.
  virtual void attach(Doorbell& doorbell) { static_cast<void>(doorbell); }
  // The engine is about to sleep, so the next arrival must ring.
  virtual void before_sleep() {}

  // In a child that this process has forked: the other ranks must notice this rank's end although the child lives on.
  virtual void on_forked_child() {}

  // Ends the processes of all ranks of the job, if the network can do that. May not return.
  void abort_job(int exit_code) { transport_->abort_job(exit_code); }

 protected:
  explicit Fabric(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

 private:
  // split(), without shared memory for control messages.
  virtual std::unique_ptr<Fabric> split_network(const std::vector<int>& ranks, Callers callers) = 0;
  void share_memory(std::shared_ptr<HostBells> bells, std::vector<int> job_ranks);

  std::unique_ptr<Transport> transport_;
  // Null while control messages go through the network.
  std::shared_ptr<HostBells> bells_;
  std::vector<int> job_ranks_;  // for each rank of this group, the number of its bell
};

}  // namespace sirtaki
