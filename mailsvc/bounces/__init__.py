"""What comes back by mail to our return paths: late bounces and complaints. It only ever takes; nothing here answers mail with mail."""
