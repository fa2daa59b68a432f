/* omnihvd's interface for C: sums of tensors that are sparse from the start. Link with libomnihvd.
 *
 * A function returns 0, or -1 after an error; omnihvd_error() then tells which. After an error of
 * a sum the group can make no further sum. All functions may be called from any thread, but a
 * group's only by one thread at a time, and by all its ranks in the same order. They block.
 *
 * omnihvd reads its settings, OMNIHVD_*, from the environment. OMNIHVD_ENABLE has no effect here.
 */
#ifndef OMNIHVD_H
#define OMNIHVD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OMNIHVD_EXPORT __attribute__((visibility("default")))

typedef struct omnihvd_group omnihvd_group; /* ranks that sum together */

typedef enum {
  OMNIHVD_FLOAT16 = 0,
  OMNIHVD_BFLOAT16 = 1,
  OMNIHVD_FLOAT32 = 2,
  OMNIHVD_FLOAT64 = 3,
  OMNIHVD_INT8 = 4,
  OMNIHVD_UINT8 = 5,
  OMNIHVD_INT32 = 6,
  OMNIHVD_INT64 = 7
} omnihvd_dtype;

/* Collective, as MPI_Allgather: writes each rank's `size` bytes `mine` to `all`, in rank order.
 * `size` is equal on all ranks. Returns 0; else the call that needed it fails. `context` is the
 * group's. Called by the thread that calls a function of the group. */
typedef int (*omnihvd_allgather)(void* context, const void* mine, void* all, size_t size);

/* Collective: makes a group of ranks 0 to size - 1. It calls `allgather` now and in its first sum,
 * and keeps `context`. The caller frees the group. Fails, on all ranks, if a rank has wrong
 * settings or another omnihvd. */
OMNIHVD_EXPORT int omnihvd_group_new(int rank, int size, omnihvd_allgather allgather, void* context,
                                     omnihvd_group** group);

/* Local: leaves the group, in the background. If the others are in a sum, it fails. */
OMNIHVD_EXPORT void omnihvd_group_free(omnihvd_group* group);

/* Blocks of a tensor, with their numbers, which ascend strictly. omnihvd allocates both arrays. */
typedef struct {
  uint64_t block_count;
  int64_t* indices;
  void* values; /* block_count blocks */
} omnihvd_block_list;

/* Collective: sums tensors of `blocks` blocks of `block_length` elements over the ranks.
 *
 * This rank has `block_count` blocks, `values`, with the numbers `indices`, from 0 to blocks - 1,
 * in any order; blocks with equal numbers are added. All others are zero; block_count may be 0.
 * Both arrays stay the caller's, must not change during the call, and are not changed.
 *
 * out: gets the dense sum, of all `blocks` blocks, and must not overlap `values`. list: gets the
 * blocks that any rank has; the caller frees it. One of both is null. Without success `out` is
 * undefined, and `list` is empty.
 *
 * All ranks pass equal `block_length` (1 to 65536), `blocks` and `dtype`. If they differ, or one
 * has an impossible number, the call fails on all ranks; so it does if a rank ends, or is late by
 * OMNIHVD_TIMEOUT. Each rank chooses between out and list by itself. */
OMNIHVD_EXPORT int omnihvd_allreduce_blocks(omnihvd_group* group, const void* values,
                                            const int64_t* indices, uint64_t block_count,
                                            uint64_t block_length, uint64_t blocks,
                                            omnihvd_dtype dtype, void* out,
                                            omnihvd_block_list* list);

/* Frees the arrays, and empties the list. */
OMNIHVD_EXPORT void omnihvd_block_list_free(omnihvd_block_list* list);

/* The last error of this thread's calls; valid until its next call. */
OMNIHVD_EXPORT const char* omnihvd_error(void);

#ifdef __cplusplus
}
#endif

#endif
