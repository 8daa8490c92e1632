#include "test/crash/setup.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string_view>

#include "test/injection/injection.h"

namespace moetap::crash {
namespace {

std::atomic<bool> armed{false};

}  // namespace

std::string name_of(const Case& c) {
  constexpr const char* transports[] = {"shm", "wire", "device", "request"};
  return fmt::format("{} {} {}", transports[static_cast<int>(c.transport)],
                     c.side == Side::worker ? "worker" : "reader",
                     c.point == nullptr ? "anywhere" : c.point);
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t number) {  // splitmix64
  std::uint64_t x = seed + (number + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::vector<Slot> slots_of_step(std::uint64_t seed, Step step) {
  const std::uint64_t random = mix(seed, step.value());
  const std::uint64_t stride = random % 2 == 0 ? 1 : 2 * (random / 2 % 16) + 1;  // odd: distinct
  std::vector<Slot> slots(1 + random / 64 % 8);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] =
        Slot((random / 512 + i * stride) % static_cast<std::uint64_t>(kFirstPutSlot.value()));
  }
  return slots;
}

Row row_of(std::uint32_t generation, Step step, Slot slot) {
  const std::uint64_t hash =
      mix(mix(generation, step.value() & 0xffff), static_cast<std::uint64_t>(slot.value()));
  const auto low = [](std::uint64_t value) { return static_cast<std::uint16_t>(value); };
  return {low(generation), low(step.value()), low(static_cast<std::uint64_t>(slot.value())),
          low(hash),       low(hash >> 16),   low(hash >> 32)};
}

void wrong(const Setup& setup, const std::string& what) {
  std::fprintf(stderr, "crash test, %s, seed %llu: %s\n", name_of(setup.kill).c_str(),
               static_cast<unsigned long long>(setup.seed), what.c_str());
  _exit(kWrong);
}

void check_in_time(const Setup& setup, std::chrono::steady_clock::time_point began,
                   const std::string& what) {
  const auto waited = std::chrono::steady_clock::now() - began;
  if (waited < setup.endpoint.timeout + std::chrono::seconds(20)) return;
  wrong(setup, fmt::format("waited {} ms, timeout {} ms, before: {}",
                           std::chrono::duration_cast<Milliseconds>(waited).count(),
                           setup.endpoint.timeout.count(), what));
}

void kill_here(const Case& c, int passing) {
  if (c.point == nullptr) return;
  static std::atomic<int> passed{0};
  injection::on_point([point = c.point, passing](std::string_view reached) {
    if (reached != point || !armed) return;
    if (passed.fetch_add(1) + 1 == passing) ::kill(getpid(), SIGKILL);
  });
}

void arm() { armed = true; }

void count_passings(Shared& shared) {
  static std::mutex one_at_a_time;
  injection::on_point([&shared](std::string_view reached) {
    const std::lock_guard lock(one_at_a_time);
    const auto entry = std::ranges::find_if(shared.passed, [&](const Shared::Passings& other) {
      return other.point == reached || other.times == 0;
    });
    reached.copy(entry->point, sizeof entry->point - 1);  // past the last: ends this process
    ++entry->times;
  });
}

void linger_with_the_lock() {
  injection::on_point([](std::string_view reached) {
    if (reached == "read locked") usleep(300);
  });
}

}  // namespace moetap::crash
