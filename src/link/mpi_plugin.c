#include "link/mpi_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int millrace_mpi_begin(int* rank, int* size) {
  int provided = 0;
  int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
  if (error != MPI_SUCCESS) return error;
  if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(MPI_COMM_WORLD, size);
  return error;
}

int millrace_mpi_hosts(char* names, int bytes) {
  char own[MPI_MAX_PROCESSOR_NAME + 1] = {0};
  int length = 0;
  int error = MPI_Get_processor_name(own, &length);
  if (error != MPI_SUCCESS) return error;
  char* const sent = calloc(1, (size_t)bytes);
  if (sent == NULL) return MPI_ERR_NO_MEM;
  strncpy(sent, own, (size_t)bytes - 1);
  error = MPI_Allgather(sent, bytes, MPI_CHAR, names, bytes, MPI_CHAR, MPI_COMM_WORLD);
  free(sent);
  return error;
}

int millrace_mpi_send(int to, int tag, const void* data, size_t bytes, void** operation) {
  MPI_Request* const request = malloc(sizeof *request);
  if (request == NULL) return MPI_ERR_NO_MEM;
  const int error = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, request);
  if (error != MPI_SUCCESS) {
    free(request);
    return error;
  }
  *operation = request;
  return MPI_SUCCESS;
}

int millrace_mpi_probe(int tag, int* found, int* from, size_t* bytes, void** message) {
  MPI_Message matched;
  MPI_Status status;
  int error = MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, found, &matched, &status);
  if (error != MPI_SUCCESS || !*found) return error;
  int count = 0;
  error = MPI_Get_count(&status, MPI_BYTE, &count);
  if (error != MPI_SUCCESS) return error;
  MPI_Message* const kept = malloc(sizeof *kept);
  if (kept == NULL) return MPI_ERR_NO_MEM;
  *kept = matched;
  *message = kept;
  *from = status.MPI_SOURCE;
  *bytes = (size_t)count;
  return MPI_SUCCESS;
}

int millrace_mpi_receive(void* message, void* data, size_t bytes, void** operation) {
  MPI_Message* const matched = message;
  MPI_Request* const request = malloc(sizeof *request);
  if (request == NULL) return MPI_ERR_NO_MEM;
  const int error = MPI_Imrecv(data, (int)bytes, MPI_BYTE, matched, request);
  free(matched);
  if (error != MPI_SUCCESS) {
    free(request);
    return error;
  }
  *operation = request;
  return MPI_SUCCESS;
}

int millrace_mpi_test(void* operation, int* done) {
  MPI_Request* const request = operation;
  const int error = MPI_Test(request, done, MPI_STATUS_IGNORE);
  if (error != MPI_SUCCESS) *done = 1;
  if (*done) free(request);
  return error;
}

int millrace_mpi_leave(void** operation) {
  MPI_Request* const request = malloc(sizeof *request);
  if (request == NULL) return MPI_ERR_NO_MEM;
  const int error = MPI_Ibarrier(MPI_COMM_WORLD, request);
  if (error != MPI_SUCCESS) {
    free(request);
    return error;
  }
  *operation = request;
  return MPI_SUCCESS;
}

void millrace_mpi_text(int error, char* text, int bytes) {
  char words[MPI_MAX_ERROR_STRING + 1] = {0};
  int length = 0;
  if (MPI_Error_string(error, words, &length) != MPI_SUCCESS) snprintf(words, sizeof words, "MPI error %d", error);
  snprintf(text, (size_t)bytes, "%s", words);
}

void millrace_mpi_abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

int millrace_mpi_end(void) { return MPI_Finalize(); }
