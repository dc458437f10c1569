// Transport over MPI: eager control messages into receives that are always posted, and data by nonblocking transfers.
#pragma once

#include <deque>

#include "mpi/mpi_communicator.h"
#include "transport/transport.h"

namespace sirtaki {

class MpiTransport final : public Transport {
 public:
  // Becomes the owner of the communicator. Collective; blocks.
  explicit MpiTransport(MpiCommunicator base);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int to, Bytes bytes) override;
  bool receive(Message& message) override;
  bool flushed() override;

  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override;
  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override;

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override { return split_mpi(ranks); }
  std::unique_ptr<MpiTransport> split_mpi(const std::vector<int>& ranks);
  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override { return split_members_mpi(ranks); }
  std::unique_ptr<MpiTransport> split_members_mpi(const std::vector<int>& ranks);
  void abort_job(int exit_code) override;

  const MpiCommunicator& communicator() const { return data_; }

 private:
  // The message that one peer is sending: first its eager buffer, then the rest of a longer message in exact pieces.
  struct Inbox {
    int from;
    Bytes eager;
    Bytes message;
    std::size_t received = 0;  // bytes of `message`
    std::size_t expected = 0;  // bytes of the piece under way; 0 while the eager buffer waits
  };
  // A send that still reads its bytes. Sends complete in order, so the last piece of a message owns all its bytes.
  struct Outgoing {
    MpiRequest request;
    Bytes bytes;
  };

  void post(std::size_t inbox);
  bool arrived(Inbox& inbox, Message& message);
  void end_receives();
  void end_sends();

  MpiCommunicator control_;
  MpiCommunicator data_;
  const MpiLibrary& mpi_;
  int rank_;
  int size_;
  std::vector<Inbox> inboxes_;        // one for each peer that sends to this rank
  std::vector<MpiRequest> receives_;  // the receive that each inbox waits for
  std::deque<Outgoing> outgoing_;
};

}  // namespace sirtaki
