// Limits of the system that a call ran into: which one, how large it is, and how to raise it.
#pragma once

#include <cstddef>
#include <string>

namespace moetap {

// For the errno of a call that opens a file; "" if no limit explains it, else a sentence that starts
// with ": ".
std::string limit_on_open(int error);

// For the errno of mmap(2) of so many bytes.
std::string limit_on_map(int error, std::size_t bytes);

// SystemError(EFBIG) if no file of so many bytes may be made: exceeding RLIMIT_FSIZE would end the
// process with a signal. `what` begins the message.
void require_file_size(std::size_t bytes, const std::string& what);

}  // namespace moetap
