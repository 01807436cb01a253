/* What libmillrace_mpi.so offers to src/link/mpi_link.cpp, which loads it when an MPI launcher started the process: the
 * program itself needs no MPI, and the plugin nothing of the program. Calls return 0 or an MPI error, which
 * millrace_mpi_text() puts into words. One thread at a time calls. No call waits for another rank but begin, hosts and
 * end. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the job: this process's rank of `size`. */
int millrace_mpi_begin(int* rank, int* size);
/* names: [size][bytes], each ending with a zero. All ranks call it at once. */
int millrace_mpi_hosts(char* names, int bytes);
/* Begins to send; `data` stays as it is until the operation is done. */
int millrace_mpi_send(int to, int tag, const void* data, size_t bytes, void** operation);
/* Whether a message with this tag is here: from whom, how long. Only `message` can be received then. */
int millrace_mpi_probe(int tag, int* found, int* from, size_t* bytes, void** message);
/* Begins to receive it; `data` has room for its bytes. */
int millrace_mpi_receive(void* message, void* data, size_t bytes, void** operation);
/* done: the operation is over and must not be asked about again. */
int millrace_mpi_test(void* operation, int* done);
/* Begins to wait for all ranks to do the same, which ends as an operation does. */
int millrace_mpi_leave(void** operation);
void millrace_mpi_text(int error, char* text, int bytes);
/* Ends all processes of the job. */
void millrace_mpi_abort(int exit_code);
int millrace_mpi_end(void);

#ifdef __cplusplus
}
#endif
