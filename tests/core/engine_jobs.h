// Jobs whose ranks are threads over the loopback transport, for tests of whole engines.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "fabric/loopback_fabric.h"
#include "transport/loopback.h"

namespace sirtaki::testing {

inline EngineOptions default_options() {
  EngineOptions options;
  options.program = "test";
  options.log = [](const std::string&) {};
  return options;
}

// Runs `body` as each rank of a job of its own and shuts down. `planes`: for each rank, how it makes its planes.
inline void run_ranks(
    int size, const std::function<void(Engine&, int)>& body,
    const std::function<EngineOptions(int)>& options = [](int) { return default_options(); },
    const std::function<MakePlanes(int)>& planes = [](int) { return make_point_to_point_planes; }) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(options(rank),
                    make_loopback_fabric(std::move(transports[static_cast<std::size_t>(rank)]), planes(rank)));
      body(engine, rank);
      engine.shutdown();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline Result wait(const std::shared_ptr<Work>& work) {
  while (!work->wait()) {
  }
  return std::move(work->result());
}

inline Request request_of(Verb verb, const std::string& name, Shape shape, DType dtype = DType::kFloat32) {
  Request request;
  request.verb = verb;
  request.name = name;
  request.tensors = {{dtype, kHostDevice, std::move(shape)}};
  return request;
}

inline std::shared_ptr<Work> allreduce(Engine& engine, std::vector<float>& data, const std::string& name,
                                       ReduceOp op = ReduceOp::kSum, int group = 0) {
  Request request = request_of(Verb::kAllreduce, name, {static_cast<std::int64_t>(data.size())});
  request.op = op;
  return engine.queue().put(group, {std::move(request), {{data.data(), data.data()}}});
}

// A send or a receive.
inline std::shared_ptr<Work> transfer(Engine& engine, Verb verb, std::vector<float>& data, int peer, int tag,
                                      int group = 0) {
  Request request = request_of(verb, "", {static_cast<std::int64_t>(data.size())});
  request.root = peer;
  request.tag = tag;
  return engine.queue().put(group, {std::move(request), {{data.data(), data.data()}}});
}

inline std::shared_ptr<Work> plain(Engine& engine, Verb verb, std::vector<std::int64_t> splits = {}) {
  Request request;
  request.verb = verb;
  request.splits = std::move(splits);
  return engine.queue().put(0, {std::move(request), {}});
}

}  // namespace sirtaki::testing
