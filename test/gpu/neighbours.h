// The other ranks of a gather, pretended in this process.
#pragma once

#include <moetap/collective.h>
#include <moetap/device.h>
#include <moetap/error.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moetap::test {

// Of a rank to whom the other ranks' parts never come, unless they are given.
class Neighbours final : public Collective {
 public:
  Neighbours(int size, int rank) : size_(size), rank_(rank) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }
  void gather(const std::int32_t* from, std::int32_t* to, std::span<const std::int64_t> counts,
              Stream& stream) override {
    given.assign(counts.begin(), counts.end());
    const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank_)]);
    for (int i = 0; i < rank_; ++i) to += counts[static_cast<std::size_t>(i)];
    stream.copy(to, from, own * sizeof *to);
  }
  void launched(Stream&) override {}
  void check() override {
    if (broken) throw TimeoutError("broken");
  }

  bool broken = false;
  std::vector<std::int64_t> given;

 private:
  int size_;
  int rank_;
};

}  // namespace moetap::test
