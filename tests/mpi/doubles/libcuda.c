/* Stands in for CUDA's driver: memory from device_malloc() is a GPU's, it says. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char *memory, *end;

void* device_malloc(size_t bytes) {
  memory = malloc(bytes);
  end = memory + bytes;
  return memory;
}

int cuPointerGetAttribute(void* data, int attribute, uint64_t pointer) {
  const char* const p = (const char*)(uintptr_t)pointer;
  if (attribute != 2 || p < memory || p >= end) return 1; /* CUDA_ERROR_INVALID_VALUE */
  *(unsigned*)data = 2;                                   /* CU_MEMORYTYPE_DEVICE */
  return 0;
}

int cuMemcpy(uint64_t to, uint64_t from, size_t bytes) {
  if (getenv("COPY_FAILS")) return 700; /* CUDA_ERROR_ILLEGAL_ADDRESS */
  memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes);
  return 0;
}
