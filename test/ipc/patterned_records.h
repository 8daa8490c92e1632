// Ring records that tell which step they are of, whatever part of them is looked at.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ipc/internal/channel.h"
#include "test/ipc/child_process.h"

namespace moetap::test {

// Every word of a record is a function of its step and place, so that one taken from another
// record shows.
inline std::uint64_t pattern(Step step, std::size_t word) {
  return (step.value() * 0x9E3779B97F4A7C15u) ^ (word * 0xC2B2AE3D27D4EB4Fu);
}

inline void fill(std::span<std::byte> bytes, Step step) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = pattern(step, i);
    std::memcpy(&bytes[i], &word, 8);
  }
}

inline bool holds(std::span<const std::byte> bytes, Step step) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = pattern(step, i);
    if (std::memcmp(&bytes[i], &word, 8) != 0) return false;
  }
  return true;
}

inline Descriptor descriptor_of(Step step) {
  return {.step = step, .num_tokens = 1 + static_cast<std::int64_t>(step.value() % 8)};
}

inline void send(ChannelProducer& producer, Step step) {
  fill(producer.acquire(), step);
  producer.commit(descriptor_of(step));
}

// The next record must be that of `step`.
inline void expect_next(ChannelConsumer& consumer, Step step) {
  ASSERT_TRUE(consumer.wait(Milliseconds(kPatienceMs))) << "step " << step;
  const ChannelConsumer::Item* item = consumer.peek();
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(item->descriptor.step, step);
  EXPECT_EQ(item->descriptor.num_tokens, descriptor_of(step).num_tokens);
  EXPECT_TRUE(holds(item->bytes, step)) << "step " << step;
  consumer.release();
}

}  // namespace moetap::test
