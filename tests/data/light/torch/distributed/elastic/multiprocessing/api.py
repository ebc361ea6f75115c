class SignalException(Exception):
    def __init__(self, message, sigval):
        super().__init__(message)
        self.sigval = sigval
