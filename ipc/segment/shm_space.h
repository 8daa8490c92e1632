// The memory of a segment's file: whether there is room for it, and that it is there.
#pragma once

#include <cstddef>
#include <string>

namespace moetap {

// SystemError unless /dev/shm and the limit on the size of files have room for `bytes`.
void require_room(int fd, const std::string& name, std::size_t bytes);

void set_size(int fd, const std::string& name, std::size_t bytes);  // SystemError

// Sets the size and backs every page now, so that no later access can fail for lack of space. A
// signal makes the kernel undo all pages of a call, so with one every millisecond a large call
// would never finish. So memory is reserved in pieces, and signals wait for the end of a piece.
void reserve(int fd, const std::string& name, std::size_t bytes);

}  // namespace moetap
