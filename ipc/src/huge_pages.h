// Shared memory in huge pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// Backs memory of a shared file, none of which was used yet, with huge pages, as many as the kernel
// finds; what is left is for posix_fallocate(3). SystemError if the kernel refuses to try.
void back_with_huge_pages(std::span<std::byte> memory, const std::string& name);

// SystemError with why_no_huge_pages(), if there is a reason.
void require_huge_pages(const std::string& name);

}  // namespace moetap
