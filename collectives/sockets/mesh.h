// One rank's connections to the other ranks of its job, made when they are first used, and what has arrived through
// them. One thread at a time calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sleep/arrival_watch.h"
#include "sockets/connection.h"
#include "sockets/inbox.h"
#include "sockets/mesh_options.h"
#include "sockets/open_sockets.h"

namespace sirtaki {

class Mesh final : private ConnectionOwner {
 public:
  explicit Mesh(MeshOptions options);
  // Leaves the job normally, unless it has failed.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.addresses.size()); }

  // Takes in what has arrived, and sends what waited. Never blocks. Records failures for check().
  void progress();
  // Throws LostRank the first time after a rank was lost, and Error(kAborted) once a rank has ended the job.
  void check();
  // The same, and each time if that rank is lost.
  void check(int rank);

  // Sends nothing to a rank that is lost. `borrowed` and `done`: see SendQueue::add().
  void send(int to, SocketFrameHead head, Bytes own, std::span<const std::byte> borrowed = {}, bool* done = nullptr);
  // This rank waits for that one, so it must notice its end: makes a connection.
  void expect(int from) { connection_to(from); }
  bool flushed() const;
  void copy_body(int to, const bool* done);
  void copy_all_bodies();

  std::uint64_t new_group();
  Inbox& inbox(std::uint64_t group);
  // Frames for this group are dropped from now on.
  void end_group(std::uint64_t group);

  void abort_job(int exit_code);
  // In a child that this process has forked. The mesh is not used there.
  void on_forked_child() { open_.close_all(); }

  // From now on arrivals ring this doorbell, once after each watch().
  void attach(Doorbell& doorbell) { watch_ = std::make_unique<ArrivalWatch>(epoll_.get(), doorbell); }
  bool attached() const { return watch_ != nullptr; }
  // Before a sleep. Takes in what is there; then the next arrival rings. Throws as check().
  void watch();

 private:
  struct Peer {
    Connection* out = nullptr;  // for all frames to this rank, so that they keep their order
    std::string lost;           // why; empty if it is not
    bool left = false;
  };

  std::span<const std::byte> key() const override { return options_.key; }
  Introducer self() const override { return {options_.generation, rank(), -1, size()}; }
  std::span<std::byte> scratch() override { return scratch_; }
  void on_identified(Connection& connection) override;
  void on_closed(Connection& connection, const std::string& why) override;
  void on_message(int from, std::uint64_t group, Bytes bytes) override;
  FrameTarget* on_frame(int from, const SocketFrameHead& head) override;

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Connection* connection_to(int rank);
  void add(std::unique_ptr<Connection> connection);
  void accept();
  void drop_oldest_stranger();
  void watch_output(Connection& connection);
  void lose(int rank, const std::string& why);
  void end_job(int rank, int exit_code);
  void pass_on_abort();
  void send_to_all(const SocketFrameHead& head);
  void leave();
  void work_until(const std::function<bool(const Connection&)>& done);

  MeshOptions options_;
  Descriptor epoll_;
  OpenSockets open_;
  std::vector<std::byte> scratch_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<std::uint64_t, Inbox> inboxes_;
  std::set<std::uint64_t> ended_groups_;
  std::uint64_t groups_made_ = 0;

  std::optional<int> news_of_;  // a rank whose loss check() has not reported
  std::string ended_;           // which rank has ended the job, and how
  SocketFrameHead abort_;       // what was sent to say so
  bool passes_on_abort_ = false;
  bool failed_ = false;
  bool leaving_ = false;
  std::unique_ptr<ArrivalWatch> watch_;
};

}  // namespace sirtaki
