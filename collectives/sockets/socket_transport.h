// Transport over TCP connections between all ranks of a job, without MPI.
#pragma once

#include <memory>
#include <vector>

#include "sockets/mesh.h"
#include "transport/transport.h"

namespace sirtaki {

class SocketTransport final : public Transport {
 public:
  // For all ranks of the job. The mesh is shared by all transports that are split off.
  explicit SocketTransport(std::shared_ptr<Mesh> mesh);
  ~SocketTransport() override;

  std::string_view name() const override { return "sockets"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

  void send(int to, Bytes bytes) override;
  bool receive(Message& message) override;
  bool flushed() override;

  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override;
  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override;
  void stop_data() override;

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override;
  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override;
  bool arrivals_wake() const override { return mesh_->attached(); }
  void abort_job(int exit_code) override { mesh_->abort_job(exit_code); }

  Mesh& mesh() { return *mesh_; }

 private:
  SocketTransport(std::shared_ptr<Mesh> mesh, std::uint64_t group, std::vector<int> ranks);

  int job_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  void wait_for_all();

  std::shared_ptr<Mesh> mesh_;
  std::uint64_t group_;
  Inbox& inbox_;
  std::vector<int> ranks_;    // in the job, by rank in this group
  std::vector<int> members_;  // the reverse; -1 outside
  int rank_ = -1;
};

}  // namespace sirtaki
