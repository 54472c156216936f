# The command of every sandbox until an order comes, for x86_64; aarch64.S does the same, step by step.
#
# It says that it is there, waits for one packet, takes the three standard streams and the block of arguments out of it,
# and becomes the command.  At the end of the socket it ends, and so it does, having said why, at anything that it does
# not expect: then nothing is ever run.  It has no data, no library and no memory but its stack.  `starter.py` lays out
# what it is sent and gives the numbers below; `tools/make_sandbox_starters.py` makes the program.
#
# struct msghdr and struct cmsghdr: linux/socket.h; the calls: asm/unistd_64.h.

        .set    IMAGE, 6                        # the descriptors that it begins with
        .set    ORDERS, 7
        .set    BLOCK, 0x10000000               # where the arguments lie
        .set    HERE, 1                         # the byte that it says first
        .set    FORGOTTEN, 125                  # how it ends
        .set    NOT_EXECUTED, 126
        .set    EBADMSG, 74

        .set    IOVEC, 56                       # on the stack: struct msghdr, then these
        .set    NUMBERS, 72                     # length of the block; addresses of path, argv, envp
        .set    RIGHTS, 104                     # struct cmsghdr, then four descriptors
        .set    FRAME, 144

        .globl  _start
        .text
_start:
        sub     $FRAME, %rsp
        movq    $HERE, (%rsp)
        mov     $1, %eax                        # write
        mov     $ORDERS, %edi
        mov     %rsp, %rsi
        mov     $1, %edx
        syscall
        cmp     $1, %rax
        jne     forgotten

        movq    $0, (%rsp)                      # msg_name, msg_namelen
        movq    $0, 8(%rsp)
        lea     IOVEC(%rsp), %rax
        mov     %rax, 16(%rsp)
        movq    $1, 24(%rsp)
        lea     RIGHTS(%rsp), %rax
        mov     %rax, 32(%rsp)
        movq    $32, 40(%rsp)
        movq    $0, 48(%rsp)
        lea     NUMBERS(%rsp), %rax
        mov     %rax, IOVEC(%rsp)
        movq    $32, IOVEC+8(%rsp)
        mov     $47, %eax                       # recvmsg
        mov     $ORDERS, %edi
        mov     %rsp, %rsi
        mov     $0x40000000, %edx               # MSG_CMSG_CLOEXEC
        syscall
        test    %rax, %rax
        jle     forgotten
        cmp     $32, %rax
        jne     odd
        testl   $0x28, 48(%rsp)                 # MSG_TRUNC, MSG_CTRUNC
        jnz     odd
        cmpq    $32, 40(%rsp)
        jne     odd
        cmpq    $32, RIGHTS(%rsp)
        jne     odd
        cmpl    $1, RIGHTS+8(%rsp)              # SOL_SOCKET
        jne     odd
        cmpl    $1, RIGHTS+12(%rsp)             # SCM_RIGHTS
        jne     odd

        xor     %ebx, %ebx
streams:
        mov     $292, %eax                      # dup3, which leaves them open at the execution
        mov     RIGHTS+16(%rsp,%rbx,4), %edi
        mov     %ebx, %esi
        xor     %edx, %edx
        syscall
        cmp     %rbx, %rax
        jne     refused
        inc     %ebx
        cmp     $3, %ebx
        jne     streams

        mov     $9, %eax                        # mmap
        mov     $BLOCK, %edi
        mov     NUMBERS(%rsp), %rsi
        mov     $1, %edx                        # PROT_READ
        mov     $0x100002, %r10d                # MAP_PRIVATE, MAP_FIXED_NOREPLACE
        movslq  RIGHTS+28(%rsp), %r8
        xor     %r9d, %r9d
        syscall
        cmp     $BLOCK, %rax
        jne     refused

        mov     $72, %eax                       # fcntl: the execution closes the socket, which tells of it
        mov     $ORDERS, %edi
        mov     $2, %esi                        # F_SETFD
        mov     $1, %edx                        # FD_CLOEXEC
        syscall
        test    %rax, %rax
        jnz     refused
        mov     $3, %eax                        # close
        mov     $IMAGE, %edi
        syscall
        test    %rax, %rax
        jnz     refused

        mov     $59, %eax                       # execve
        mov     NUMBERS+8(%rsp), %rdi
        mov     NUMBERS+16(%rsp), %rsi
        mov     NUMBERS+24(%rsp), %rdx
        syscall
        jmp     refused

odd:
        mov     $-EBADMSG, %rax
refused:
        neg     %eax
        mov     %eax, (%rsp)
        mov     $1, %eax                        # write
        mov     $ORDERS, %edi
        mov     %rsp, %rsi
        mov     $4, %edx
        syscall
        mov     $NOT_EXECUTED, %edi
        jmp     end
forgotten:
        mov     $FORGOTTEN, %edi
end:
        mov     $231, %eax                      # exit_group
        syscall
        hlt
