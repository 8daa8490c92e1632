// Shared memory in huge pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// SystemError with why_no_huge_pages(), if there is a reason.
void require_huge_pages(const std::string& name);

// Rounded up to whole huge pages: for part of one the kernel silently uses small pages.
std::size_t in_whole_huge_pages(std::size_t bytes);

// Backs unused memory of a shared file with as many huge pages as the kernel finds.
// posix_fallocate(3) must reserve the rest. SystemError if the kernel refuses to try.
void back_with_huge_pages(std::span<std::byte> memory, const std::string& name);

// SystemError unless all of this memory, which is a whole mapping, is in huge pages.
void require_in_huge_pages(std::span<const std::byte> memory, const std::string& name);

}  // namespace moetap
