#include "plane/gpu/gpu_capabilities.h"

#include <array>
#include <cstring>
#include <map>

#include "base/serialization.h"

namespace sirtaki {
namespace {

constexpr int kTag = 0;
constexpr std::size_t kLetterBytes = 2048;
constexpr std::size_t kLongestText = 400;
using Letter = std::array<std::byte, kLetterBytes>;

void write_text(Writer& writer, const std::string& text) { writer.text(text.substr(0, kLongestText)); }

Letter seal(Writer& writer) {
  const Bytes bytes = writer.take();
  Letter letter{};
  std::memcpy(letter.data(), bytes.data(), bytes.size());
  return letter;
}

Letter letter_of(const GpuCard& card) {
  Writer writer;
  for (const std::string* text : {&card.identity, &card.nccl, &card.lacks_nccl, &card.lacks_kernels}) {
    write_text(writer, *text);
  }
  writer.number(card.mpi ? 1 : 0);
  return seal(writer);
}

GpuCard card_of(const Letter& letter) {
  Reader reader(letter);
  GpuCard card;
  for (std::string* text : {&card.identity, &card.nccl, &card.lacks_nccl, &card.lacks_kernels}) *text = reader.text();
  card.mpi = reader.below(2) == 1;
  return card;
}

Letter letter_of(const GpuCapabilities& agreement) {
  Writer writer;
  writer.number(agreement.nccl ? 1 : 0);
  writer.number(agreement.kernels ? 1 : 0);
  writer.number(agreement.mpi ? 1 : 0);
  write_text(writer, agreement.why_not);
  write_text(writer, agreement.refusal);
  writer.text({agreement.id.bytes, sizeof(agreement.id.bytes)});
  return seal(writer);
}

GpuCapabilities agreement_of(const Letter& letter) {
  Reader reader(letter);
  GpuCapabilities agreement;
  agreement.nccl = reader.below(2) == 1;
  agreement.kernels = reader.below(2) == 1;
  agreement.mpi = reader.below(2) == 1;
  agreement.why_not = reader.text();
  agreement.refusal = reader.text();
  const std::string id = reader.text();
  std::memcpy(agreement.id.bytes, id.data(), std::min(id.size(), sizeof(agreement.id.bytes)));
  return agreement;
}

std::string obstacle(const std::vector<GpuCard>& cards) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const GpuCard& card = cards[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (card.nccl.empty()) return who + " has no NCCL: " + card.lacks_nccl;
    if (card.nccl != cards[0].nccl) return "rank 0 has NCCL " + cards[0].nccl + ", " + who + " has " + card.nccl;
    const auto [owner, is_new] = owners.emplace(card.identity, rank);
    if (!is_new) {
      return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " use the same GPU (" +
             card.identity +
             "), which NCCL does not allow; give every rank a GPU of its own, as by "
             "torch.cuda.set_device(hvd.local_rank())";
    }
  }
  return "";
}

}  // namespace

GpuCapabilities common_gpu_capabilities(const std::vector<GpuCard>& cards, const std::string& wish) {
  GpuCapabilities agreement;
  agreement.kernels = agreement.mpi = true;
  for (const GpuCard& card : cards) {
    agreement.kernels &= card.lacks_kernels.empty();
    agreement.mpi &= card.mpi;
  }
  if (wish == "mpi") return agreement;
  const std::string problem = obstacle(cards);
  agreement.nccl = problem.empty();
  if (problem.empty()) return agreement;
  (wish == "nccl" ? agreement.refusal : agreement.why_not) = problem;
  return agreement;
}

Task exchange_cards(Transport& transport, const GpuCard& own, const std::string& wish, const NcclUniqueId& id,
                    GpuCapabilities& agreement) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const Letter mine = letter_of(own);
  if (transport.rank() != 0) {
    co_await transport.send_data(0, kTag, mine);
    Letter answer{};
    co_await transport.receive_data(0, kTag, answer);
    agreement = agreement_of(answer);
    co_return;
  }
  std::vector<Letter> letters(ranks);
  std::vector<PendingPtr> pending;
  for (std::size_t r = 1; r < ranks; ++r) {
    pending.push_back(transport.receive_data(static_cast<int>(r), kTag, letters[r]));
  }
  for (PendingPtr& transfer : pending) co_await std::move(transfer);
  std::vector<GpuCard> cards = {own};
  for (std::size_t r = 1; r < ranks; ++r) cards.push_back(card_of(letters[r]));
  agreement = common_gpu_capabilities(cards, wish);
  agreement.id = id;
  const Letter answer = letter_of(agreement);
  pending.clear();
  for (std::size_t r = 1; r < ranks; ++r) {
    pending.push_back(transport.send_data(static_cast<int>(r), kTag, answer));
  }
  for (PendingPtr& transfer : pending) co_await std::move(transfer);
}

}  // namespace sirtaki
