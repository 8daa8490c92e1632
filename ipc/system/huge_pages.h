// Shared memory in huge pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// SystemError with why_no_huge_pages(), if there is a reason.
void require_huge_pages(const std::string& name);

// Rounded up to whole huge pages: of a part of one the kernel makes small pages, and says nothing.
std::size_t in_whole_huge_pages(std::size_t bytes);

// Backs memory of a shared file, none of which was used yet, with huge pages, as many as the kernel
// finds; what is left is for posix_fallocate(3). SystemError if the kernel refuses to try.
void back_with_huge_pages(std::span<std::byte> memory, const std::string& name);

// SystemError unless all of this memory, a whole mapping, is in huge pages.
void require_in_huge_pages(std::span<const std::byte> memory, const std::string& name);

}  // namespace moetap
